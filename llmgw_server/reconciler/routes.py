"""From the fleet to the gateway's table, and from the gateway's counts to the planner's demand."""

from collections.abc import Mapping

from llmgw_common.documents.catalog import Catalog
from llmgw_common.documents.models import Model
from llmgw_common.ids import ModelName, ReplicaId
from llmgw_common.reason import ReasonCode
from llmgw_common.states import ReplicaState
from llmgw_server.fleet.model import FleetView, Replica
from llmgw_server.gateway.gateway import GatewayDemand
from llmgw_server.gateway.table import ModelRoute, RouteLimits, RouteTable, Target
from llmgw_server.planner.plan import Plan, Unmet
from llmgw_server.planner.policy import Demand


def route_table(catalog: Catalog, fleet: FleetView, plan: Plan, revision: int) -> RouteTable:
    """Return the routes of every model: only ready replicas with a known endpoint are targets."""
    return RouteTable.of(revision, (_route(model, fleet, plan) for model in catalog.models))


def _route(model: Model, fleet: FleetView, plan: Plan) -> ModelRoute:
    replicas = fleet.replicas_of(model.name)
    unmet = plan.unmet.get(ModelName(model.name))
    limits = model.limits
    is_starting = any(replica.counts_toward_wanted for replica in replicas)
    return ModelRoute(
        name=model.name,
        kind=model.kind,
        aliases=tuple(model.aliases),
        engine_kind=replicas[0].engine_kind if replicas else "",
        targets=tuple(t for replica in replicas if (t := _target(replica, fleet))),
        limits=RouteLimits(
            max_queue=limits.max_queue,
            max_wait_s=limits.max_wait,
            first_byte_s=limits.first_byte,
            between_bytes_s=limits.between_bytes,
        ),
        why_not_ready=unmet.reason.text if unmet else "",
        is_placeable=is_starting or not _is_hopeless(unmet),
    )


def _is_hopeless(unmet: Unmet | None) -> bool:
    """Waiting helps against settling and back-off, not against a fleet that has no place."""
    return unmet is not None and unmet.reason.code is ReasonCode.NO_PLACE


def _target(replica: Replica, fleet: FleetView) -> Target | None:
    leader = replica.leader
    is_routable = replica.state is ReplicaState.READY
    if not is_routable or leader is None or not leader.url:
        return None
    node = fleet.nodes.get(leader.node_id)
    host, _, port = leader.url.removeprefix("http://").rpartition(":")
    return Target(
        replica_id=replica.replica_id,
        epoch=replica.epoch,
        host=host.strip("[]"),
        port=int(port),
        served_model=replica.served_model or replica.model,
        access_key=leader.access_key,
        weight=replica.weight,
        node_name=node.name if node else "",
    )


def demand_from(
    counts: GatewayDemand,
    acknowledged: RouteTable,
    answers: Mapping[ReplicaId, bool],
    fleet: FleetView,
) -> Demand:
    """Return the demand as the planner reads it."""
    in_flight: dict[ReplicaId, int] = {}
    for (replica_id, _), count in counts.in_flight.items():
        in_flight[replica_id] = in_flight.get(replica_id, 0) + count
    last_request_at_s: dict[ModelName, float] = {}
    for (replica_id, _), at_s in counts.last_used_at_s.items():
        replica = fleet.replicas.get(replica_id)
        if replica:
            last = last_request_at_s.get(replica.model, 0.0)
            last_request_at_s[replica.model] = max(last, at_s)
    return Demand(
        waiting={ModelName(name): count for name, count in counts.waiting.items()},
        in_flight=in_flight,
        routed=frozenset(t.replica_id for route in acknowledged.routes for t in route.targets),
        last_request_at_s=last_request_at_s,
        answers=answers,
    )
