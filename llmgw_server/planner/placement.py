"""Where a replica goes: filter, score, book; or why no node can take it.

Today a replica has one shard. Gangs over a fabric get a verdict that says so.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from llmgw_common.reason import Reason, ReasonCode
from llmgw_server.fleet.model import Node
from llmgw_server.planner.filters import Request, first_miss, fitting_gpus
from llmgw_server.planner.plan import ShardPlacement
from llmgw_server.planner.verdict import Verdict, summarize


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdicts:
    """No node fits: one verdict a node, and the line that sums them up."""

    text: str
    verdicts: tuple[Verdict, ...]


def place(request: Request, nodes: Iterable[Node]) -> tuple[ShardPlacement, ...] | Verdicts:
    """Return where the shards go, booked on the request's book, or why nowhere."""
    profile = request.profile
    if profile.shards > 1:
        return _no_gang(request)
    candidates: list[Node] = []
    verdicts: list[Verdict] = []
    for node in sorted(nodes, key=lambda n: (n.name, n.node_id)):
        miss = first_miss(request, node)
        if miss is None:
            candidates.append(node)
        else:
            verdicts.append(
                Verdict(
                    candidate=node.name, profile=profile.name, reason=miss.reason, miss=miss.size
                )
            )
    if not candidates:
        text = summarize(profile.name, len(verdicts), verdicts)
        return Verdicts(text=text, verdicts=tuple(verdicts))
    return (_book(request, min(candidates, key=lambda node: score(request, node))),)


def score(request: Request, node: Node) -> tuple[float, ...] | tuple[object, ...]:
    """Return the node's rank as a candidate: the smallest wins.

    Weights already there, then the fewest GPUs left over (whole nodes stay free for large
    profiles), then the fewest replicas of this model, then the fewest shards, then the name.
    """
    return (
        request.model.source not in node.weights,
        len(request.book.free_gpus(node)) - request.profile.gpus if request.profile.gpus else 0,
        request.book.shards_of_model_on(request.model.name, node),
        request.book.shards_on(node),
        node.name,
    )


def _book(request: Request, node: Node) -> ShardPlacement:
    gpus = fitting_gpus(request, node)[: request.profile.gpus]
    port = request.book.free_port(node)
    if port is None:
        raise ValueError(f"node {node.name} passed the port filter without a free port")
    uuids = tuple(gpu.uuid for gpu in gpus)
    request.book.book(node, request.model.name, uuids, port)
    return ShardPlacement(
        node_id=node.node_id,
        node_name=node.name,
        rank=0,
        gpu_uuids=uuids,
        gpu_indices=tuple(gpu.index for gpu in gpus),
        port=port,
    )


def _no_gang(request: Request) -> Verdicts:
    profile = request.profile
    text = f"{profile.name} spans {profile.shards} nodes, which this version does not place yet"
    reason = Reason(code=ReasonCode.GANG_UNSUPPORTED, text=text)
    verdict = Verdict(candidate="(groups of nodes)", profile=profile.name, reason=reason)
    return Verdicts(text=text, verdicts=(verdict,))
