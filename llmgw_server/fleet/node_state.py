"""How sure the server is of a node, from when it last spoke. Pure."""

from dataclasses import dataclass, replace

from llmgw_server.fleet.model import Node, NodeState


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a silent node is trusted (design: reconcile pass, step 1)."""

    suspect_after_s: float = 15.0
    lost_after_s: float = 60.0


def derive_node(node: Node, patience: Patience, now_s: float) -> Node:
    """Return `node` as suspect or lost if it has been silent for long enough at `now_s`."""
    if node.last_heard_at_s is None or node.state is NodeState.EXPECTED:
        return node
    silent_s = now_s - node.last_heard_at_s
    if silent_s >= patience.lost_after_s:
        state = NodeState.LOST
    elif silent_s >= patience.suspect_after_s:
        state = NodeState.SUSPECT
    else:
        return node
    return node if node.state is state else replace(node, state=state, since_at_s=now_s)
