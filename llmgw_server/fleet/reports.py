"""From what an agent says to fleet values, with the checks that untrusted reports need."""

from dataclasses import replace
from urllib.parse import urlsplit

from llmgw_common.ids import ModelName, ReplicaId, ShardId
from llmgw_common.protocol.facts import GpuFacts, NodeFacts, ShardReport
from llmgw_common.states import ReplicaState, ShardState
from llmgw_server.fleet.model import Gpu, Node, NodeState, Replica, Shard


def shard_from(report: ShardReport, node: Node, now_s: float) -> Shard:
    """Return the shard as reported; a URL outside the node's own addresses and ports is dropped.

    One bad node must not be able to point a replica's endpoint at another host and read prompts.
    """
    return Shard(
        shard_id=ShardId(report.shard_id),
        replica_id=ReplicaId(report.replica_id),
        node_id=node.node_id,
        rank=report.rank,
        epoch=report.epoch,
        state=report.state,
        since_at_s=now_s - max(report.since_s, 0.0),
        gpu_uuids=report.gpu_uuids,
        gpu_indices=report.gpu_indices,
        hcas=report.hcas,
        port=report.port,
        url=report.url if is_own_url(report.url, node) else "",
        access_key=report.access_key.get_secret_value(),
        pid=report.pid,
        step_text=report.step_text,
        fetch=report.fetch if report.state is ShardState.FETCHING else None,
        error=report.error,
    )


def is_own_url(url: str, node: Node) -> bool:
    """Say whether `url` is plain http on one of the node's addresses inside its port band."""
    if not url:
        return False
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return False
    return (
        parts.scheme == "http"
        and parts.hostname in node.addresses
        and port is not None
        and node.port_low <= port <= node.port_high
        and not (parts.username or parts.path.strip("/") or parts.query or parts.fragment)
    )


def replica_from(report: ShardReport, shard: Shard, now_s: float) -> Replica:
    """Rebuild the replica that `report` is a part of: starting, adopted, its first shard known."""
    created_at_s = now_s - max(report.created_s, 0.0)
    return Replica(
        replica_id=shard.replica_id,
        model=ModelName(report.model),
        profile=report.profile,
        fingerprint=report.fingerprint,
        engine=report.engine,
        engine_kind=report.engine_kind,
        served_model=report.served_model,
        fabric=report.fabric,
        pool=report.pool,
        shards=(shard,),
        state=ReplicaState.STARTING,
        weight=report.weight,
        wanted_shards=report.wanted_shards,
        epoch=report.epoch,
        attempt=report.attempt,
        created_at_s=created_at_s,
        since_at_s=now_s,
        progress_at_s=now_s,
        ready_at_s=None if report.ready_s is None else now_s - report.ready_s,
        is_adopted=True,
    )


def _gpu_from(facts: GpuFacts) -> Gpu:
    return Gpu(
        uuid=facts.uuid,
        index=facts.index,
        name=facts.name,
        memory_total_bytes=facts.memory_total_bytes,
        memory_free_bytes=facts.memory_free_bytes,
        is_healthy=facts.is_healthy,
        health_text=facts.health_text,
    )


def node_with_facts(node: Node, facts: NodeFacts, now_s: float) -> Node:
    """Return `node` heard at `now_s` with the newest facts.

    Labels given at enrollment win over those of the node's own file. Addresses stay as enrolled:
    a node cannot move its endpoints to another host by reporting so.
    """
    is_back = node.state is not NodeState.CONNECTED
    return replace(
        node,
        state=NodeState.CONNECTED,
        since_at_s=now_s if is_back else node.since_at_s,
        last_heard_at_s=now_s,
        labels={**facts.labels, **node.enrolled_labels},
        host=facts.host,
        boot_id=facts.boot_id,
        os=facts.os,
        arch=facts.arch,
        driver=facts.driver,
        gpu_note=facts.gpu_note,
        cpu_count=facts.cpu_count,
        memory_total_bytes=facts.memory_total_bytes,
        memory_free_bytes=facts.memory_free_bytes,
        disk_total_bytes=facts.disk_total_bytes,
        disk_free_bytes=facts.disk_free_bytes,
        gpus=tuple(_gpu_from(gpu) for gpu in facts.gpus),
        port_low=facts.port_low,
        port_high=facts.port_high,
        engine_kinds=facts.engine_kinds,
        is_simulated=facts.is_simulated,
    )
