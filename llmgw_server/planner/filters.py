"""Which nodes can take a shard: rules from cheap to dear; the first that fails is the verdict."""

from collections.abc import Callable
from dataclasses import dataclass

from llmgw_common.documents.catalog import Catalog
from llmgw_common.documents.engines import Engine
from llmgw_common.documents.models import Model, Profile
from llmgw_common.reason import Reason, ReasonCode
from llmgw_common.units import format_bytes
from llmgw_server.fleet.book import FleetBook
from llmgw_server.fleet.model import Gpu, Node, NodeState


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is to be placed, and what is already booked."""

    catalog: Catalog
    model: Model
    profile: Profile
    engine: Engine
    book: FleetBook


@dataclass(frozen=True, slots=True)
class Miss:
    """Why a node was turned down, and how far off it was (0: not a matter of degree)."""

    reason: Reason
    size: float = 0.0


Filter = Callable[[Request, Node], Miss | None]


def _miss(code: ReasonCode, text: str, size: float = 0.0, **facts: str | int | float) -> Miss:
    return Miss(Reason(code=code, text=text, facts=tuple(facts.items())), size)


def is_connected(request: Request, node: Node) -> Miss | None:
    """The node speaks to this server now."""
    if node.state is NodeState.SUSPECT:
        return _miss(ReasonCode.NODE_SUSPECT, "no heartbeat lately")
    if node.state is not NodeState.CONNECTED:
        return _miss(ReasonCode.NOT_CONNECTED, f"it is {node.state.value}")
    if not node.session:
        return _miss(ReasonCode.NOT_CONNECTED, "its connection has just closed")
    return None


def is_not_cordoned(request: Request, node: Node) -> Miss | None:
    """No operator has closed the node to new work."""
    return _miss(ReasonCode.CORDONED, "cordoned") if node.is_cordoned else None


def is_in_pool(request: Request, node: Node) -> Miss | None:
    """The node is of the profile's pool, by name or labels; no pool means every node."""
    pool_name = request.profile.pool
    if not pool_name or request.catalog.pool_has(pool_name, node.name, node.labels):
        return None
    return _miss(ReasonCode.NOT_IN_POOL, f"not in pool {pool_name}")


def runs_engine(request: Request, node: Node) -> Miss | None:
    """The node's owner and its agent allow this kind of engine."""
    if request.engine.kind in node.engine_kinds:
        return None
    allowed = ", ".join(node.engine_kinds) or "none"
    return _miss(
        ReasonCode.ENGINE_UNSUPPORTED, f"engine kind {request.engine.kind} is not among {allowed}"
    )


def has_gpus(request: Request, node: Node) -> Miss | None:
    """Enough GPUs are free."""
    wanted = request.profile.gpus
    free = len(request.book.free_gpus(node))
    if free >= wanted:
        return None
    return _miss(
        ReasonCode.TOO_FEW_GPUS,
        f"{free} of {wanted}",
        size=float(wanted - free),
        free=free,
        wanted=wanted,
        total=len(node.gpus),
    )


def has_gpu_memory(request: Request, node: Node) -> Miss | None:
    """Enough of the free GPUs have the memory that the profile asks for."""
    need = request.profile.gpu_memory
    if not need or not request.profile.gpus:
        return None
    fitting = fitting_gpus(request, node)
    if len(fitting) >= request.profile.gpus:
        return None
    best = max((g.memory_total_bytes or 0 for g in request.book.free_gpus(node)), default=0)
    return _miss(
        ReasonCode.TOO_LITTLE_GPU_MEMORY,
        f"{format_bytes(best)} of {format_bytes(need)}",
        size=float(need - best) or 1.0,
        best_bytes=best,
        wanted_bytes=need,
    )


def has_host_memory(request: Request, node: Node) -> Miss | None:
    """The host has the free memory that the profile asks for."""
    need = request.profile.host_memory
    if not need or node.memory_free_bytes >= need:
        return None
    short = need - node.memory_free_bytes
    return _miss(
        ReasonCode.TOO_LITTLE_HOST_MEMORY,
        f"{format_bytes(short)} short",
        size=float(short),
        free_bytes=node.memory_free_bytes,
        wanted_bytes=need,
    )


def has_port(request: Request, node: Node) -> Miss | None:
    """A port of the node's band is free."""
    if request.book.free_port(node) is not None:
        return None
    return _miss(ReasonCode.NO_PORTS, f"{node.port_low} to {node.port_high} are all taken")


def fitting_gpus(request: Request, node: Node) -> tuple[Gpu, ...]:
    """Return the free GPUs with enough memory; unknown memory is not enough when any is asked."""
    need = request.profile.gpu_memory or 0
    free = request.book.free_gpus(node)
    return tuple(gpu for gpu in free if not need or (gpu.memory_total_bytes or 0) >= need)


#: The order is the order in which an operator would want to hear of them.
FILTERS: tuple[Filter, ...] = (
    is_connected,
    is_not_cordoned,
    is_in_pool,
    runs_engine,
    has_gpus,
    has_gpu_memory,
    has_host_memory,
    has_port,
)


def first_miss(request: Request, node: Node) -> Miss | None:
    """Return the first rule that turns the node down, or None if it can take the shard."""
    return next((miss for rule in FILTERS if (miss := rule(request, node))), None)
