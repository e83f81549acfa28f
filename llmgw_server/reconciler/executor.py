"""Applies a plan: one function an action. It decides nothing and skips what is under way."""

from collections.abc import Callable
from typing import assert_never

import structlog

from llmgw_common.clock import Clock
from llmgw_common.documents.catalog import Catalog
from llmgw_common.documents.engines import Engine
from llmgw_common.documents.models import Model, Profile
from llmgw_common.errors import LlmgwError
from llmgw_common.ids import IdSource, NodeId, ReplicaId, ShardId
from llmgw_common.protocol.messages import Command, EngineSpec, StartShard, StopShard, Term
from llmgw_common.states import ReplicaState, ShardState
from llmgw_server.channel.hub import Hub
from llmgw_server.fleet.model import Replica, Shard
from llmgw_server.fleet.registry import FleetRegistry
from llmgw_server.planner import plan as planned

log = structlog.get_logger(__name__)

#: Grace between SIGTERM and SIGKILL (design: rendezvous, "grace at least 15 s").
STOP_GRACE_S = 15.0


class Executor:
    """Carries out actions against the registry and the hub."""

    def __init__(self, registry: FleetRegistry, hub: Hub, clock: Clock, ids: IdSource) -> None:
        self._registry = registry
        self._hub = hub
        self._clock = clock
        self._ids = ids

    def apply(self, action: planned.Action, catalog: Catalog) -> None:
        """Carry out one action."""
        now_s = self._clock.monotonic_s()
        match action:
            case planned.PlaceReplica():
                self._place(action, catalog, now_s)
            case planned.DrainReplica():
                self._registry.drain_replica(
                    action.replica_id, action.deadline_at_s, action.reason.text, now_s
                )
            case planned.StopReplica():
                self._stop_replica(action, now_s)
            case planned.FailReplica():
                self._registry.fail_replica(action.replica_id, action.reason.text, now_s)
            case planned.StopShard():
                self._stop_shard(
                    action.node_id,
                    action.shard_id,
                    action.replica_id,
                    action.epoch,
                    action.reason.text,
                )
            case planned.ForgetReplica():
                self._registry.forget_replica(action.replica_id)
            case _:
                assert_never(action)

    def _place(self, action: planned.PlaceReplica, catalog: Catalog, now_s: float) -> None:
        model = catalog.model(action.model)
        profile = model.profile(action.profile) if model else None
        engine = catalog.engine(profile.engine) if profile else None
        if model is None or profile is None or engine is None:
            raise LlmgwError("conflict", f"{action.model}/{action.profile} left the catalog")
        replica_id = ReplicaId(self._ids.new("rep"))
        epoch = 1
        shards = tuple(
            Shard(
                shard_id=ShardId(self._ids.new("shd")),
                replica_id=replica_id,
                node_id=place.node_id,
                rank=place.rank,
                epoch=epoch,
                state=ShardState.PENDING,
                since_at_s=now_s,
                gpu_uuids=place.gpu_uuids,
                gpu_indices=place.gpu_indices,
                port=place.port,
            )
            for place in action.shards
        )
        replica = Replica(
            replica_id=replica_id,
            model=action.model,
            profile=profile.name,
            fingerprint=profile.fingerprint(engine, model),
            engine=engine.name,
            engine_kind=engine.kind,
            served_model=model.name,
            pool=profile.pool or "",
            shards=shards,
            state=ReplicaState.STARTING,
            weight=profile.weight,
            wanted_shards=profile.shards,
            epoch=epoch,
            attempt=action.attempt,
            created_at_s=now_s,
            since_at_s=now_s,
            progress_at_s=now_s,
            reason=action.reason,
        )
        self._registry.add_replica(replica)
        for shard in shards:
            self._start(replica, shard, model, profile, engine)

    def _start(
        self, replica: Replica, shard: Shard, model: Model, profile: Profile, engine: Engine
    ) -> None:
        command = StartShard(
            id="",
            term=Term(),
            shard_id=shard.shard_id,
            replica_id=replica.replica_id,
            epoch=shard.epoch,
            attempt=replica.attempt,
            model=model.name,
            served_model=replica.served_model,
            model_kind=model.kind,
            source=model.source,
            trust_remote_code=model.trust_remote_code,
            profile=profile.name,
            fingerprint=replica.fingerprint,
            engine=engine_spec(engine),
            args=dict(profile.args),
            env=dict(profile.env),
            rank=shard.rank,
            wanted_shards=replica.wanted_shards,
            weight=replica.weight,
            pool=replica.pool,
            gpu_uuids=shard.gpu_uuids,
            gpu_indices=shard.gpu_indices,
            port=shard.port,
            startup_timeout_s=profile.startup_timeout,
        )
        try:
            self._hub.command(shard.node_id, command)
        except LlmgwError as error:
            self._registry.refuse_shard(
                shard.shard_id, shard.epoch, error.message, self._clock.monotonic_s()
            )

    def _stop_replica(self, action: planned.StopReplica, now_s: float) -> None:
        self._registry.drain_replica(action.replica_id, now_s, action.reason.text, now_s)
        replica = self._registry.view().replicas[action.replica_id]
        for shard in replica.shards:
            if not shard.is_terminal and shard.state is not ShardState.STOPPING:
                self._stop_shard(
                    shard.node_id,
                    shard.shard_id,
                    shard.replica_id,
                    shard.epoch,
                    action.reason.text,
                )

    def _stop_shard(
        self, node_id: NodeId, shard_id: ShardId, replica_id: ReplicaId, epoch: int, why: str
    ) -> None:
        is_under_way = self._hub.is_waiting(node_id, _stops(shard_id, epoch))
        if is_under_way or not self._hub.is_connected(node_id):
            return
        command = StopShard(
            id="",
            term=Term(),
            shard_id=shard_id,
            replica_id=replica_id,
            epoch=epoch,
            grace_s=STOP_GRACE_S,
            text=why,
        )
        self._hub.command(node_id, command)


def _stops(shard_id: ShardId, epoch: int) -> Callable[[Command], bool]:
    return lambda command: (
        isinstance(command, StopShard) and (command.shard_id, command.epoch) == (shard_id, epoch)
    )


def engine_spec(engine: Engine) -> EngineSpec:
    """Return the engine as the wire says it."""
    install = engine.install
    return EngineSpec(
        name=engine.name,
        kind=engine.kind,
        version=engine.version,
        install_pip=tuple(install.pip or ()),
        install_python=install.python or "",
        install_index=install.index or "",
        install_path=install.path or "",
        install_container=install.container or "",
        command=tuple(engine.command or ()),
        args=dict(engine.args),
        env=dict(engine.env),
    )
