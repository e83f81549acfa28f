"""One line a case: nodes, shards, replicas, reports and catalogs with sensible defaults."""

import json
from dataclasses import replace
from typing import Any

from llmgw_common.documents.catalog import Catalog, load_catalog
from llmgw_common.ids import ModelName, NodeId, ReplicaId, ShardId
from llmgw_common.protocol.facts import GpuFacts, NodeFacts, ShardError, ShardReport
from llmgw_common.protocol.messages import Heartbeat, Register
from llmgw_common.states import ReplicaState, ShardState
from llmgw_server.fleet.model import FleetView, Gpu, Node, NodeState, Replica, Shard

GIB = 1 << 30


def make_gpus(n: int, memory_gib: int = 80, node: str = "n1") -> tuple[Gpu, ...]:
    return tuple(
        Gpu(uuid=f"GPU-{node}-{i}", index=i, name="H200", memory_total_bytes=memory_gib * GIB)
        for i in range(n)
    )


def make_node(name: str = "n1", gpus: int = 0, **fields: Any) -> Node:
    defaults: dict[str, Any] = {
        "node_id": NodeId(f"node-{name}"),
        "name": name,
        "state": NodeState.CONNECTED,
        "since_at_s": 0.0,
        "last_heard_at_s": 0.0,
        "addresses": ("127.0.0.1",),
        "cpu_count": 8,
        "memory_total_bytes": 64 * GIB,
        "memory_free_bytes": 32 * GIB,
        "gpus": make_gpus(gpus, node=name),
        "engine_kinds": ("simulated", "llama_cpp"),
        "session": 1,
    }
    return Node(**(defaults | fields))


def make_shard(
    state: ShardState = ShardState.READY, rank: int = 0, replica: str = "rep-1", **fields: Any
) -> Shard:
    defaults: dict[str, Any] = {
        "shard_id": ShardId(f"{replica}-s{rank}"),
        "replica_id": ReplicaId(replica),
        "node_id": NodeId("node-n1"),
        "rank": rank,
        "epoch": 1,
        "state": state,
        "since_at_s": 0.0,
        "port": 20000 + rank,
        "url": f"http://127.0.0.1:{20000 + rank}",
    }
    if state is ShardState.FAILED:
        defaults["error"] = ShardError(step="watch", text="exit code 1")
    return Shard(**(defaults | fields))


def make_replica(*states: ShardState, replica: str = "rep-1", **fields: Any) -> Replica:
    shards = tuple(make_shard(state, rank, replica) for rank, state in enumerate(states))
    defaults: dict[str, Any] = {
        "replica_id": ReplicaId(replica),
        "model": ModelName("m"),
        "profile": "p",
        "shards": shards,
        "state": ReplicaState.STARTING,
        "wanted_shards": max(len(states), 1),
        "created_at_s": 0.0,
        "since_at_s": 0.0,
        "progress_at_s": 0.0,
    }
    return Replica(**(defaults | fields))


def make_fleet(*nodes: Node, replicas: tuple[Replica, ...] = (), **fields: Any) -> FleetView:
    return FleetView(
        nodes={node.node_id: node for node in nodes},
        replicas={r.replica_id: r for r in replicas},
        **fields,
    )


def ready(replica: Replica, at_s: float = 0.0) -> Replica:
    return replace(replica, state=ReplicaState.READY, ready_at_s=at_s)


def make_facts(gpus: int = 0, **fields: Any) -> NodeFacts:
    defaults: dict[str, Any] = {
        "host": "h",
        "addresses": ("127.0.0.1",),
        "boot_id": "boot-1",
        "engine_kinds": ("simulated", "llama_cpp"),
        "memory_free_bytes": 32 * GIB,
        "gpus": tuple(
            GpuFacts(uuid=f"GPU-{i}", index=i, name="H200", memory_total_bytes=80 * GIB)
            for i in range(gpus)
        ),
    }
    return NodeFacts(**(defaults | fields))


def make_report(
    state: ShardState = ShardState.READY, replica: str = "rep-1", rank: int = 0, **fields: Any
) -> ShardReport:
    defaults: dict[str, Any] = {
        "shard_id": f"{replica}-s{rank}",
        "replica_id": replica,
        "model": "m",
        "profile": "p",
        "epoch": 1,
        "rank": rank,
        "state": state,
        "port": 20000 + rank,
        "url": f"http://127.0.0.1:{20000 + rank}",
        "pid": 4242,
    }
    return ShardReport(**(defaults | fields))


def make_register(*reports: ShardReport, instance: str = "ins-1", **fields: Any) -> Register:
    defaults: dict[str, Any] = {
        "id": "m1",
        "agent_version": "0.1.0",
        "instance_id": instance,
        "node": make_facts(),
        "shards": reports,
    }
    return Register(**(defaults | fields))


def make_heartbeat(*reports: ShardReport, session: int = 1, **fields: Any) -> Heartbeat:
    defaults: dict[str, Any] = {
        "id": "m2",
        "session": session,
        "sequence": 1,
        "node": make_facts(),
        "shards": reports,
    }
    return Heartbeat(**(defaults | fields))


def make_catalog(*models: dict[str, Any], pools: tuple[dict[str, Any], ...] = ()) -> Catalog:
    """A catalog with a simulated engine `e` and models that need not say everything."""
    filled = []
    for model in models or ({},):
        profiles = [
            {"name": "p", "engine": "e", "gpus": 1} | profile
            for profile in model.get("profiles", [{}])
        ]
        filled.append({"name": "m"} | model | {"profiles": profiles})
    return load_catalog(
        json.dumps(
            {
                "engines": [{"name": "e", "kind": "simulated"}],
                "pools": list(pools),
                "models": filled,
            }
        )
    )
