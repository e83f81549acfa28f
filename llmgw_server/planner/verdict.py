"""Why nothing was placed: the first rule that turned each candidate down, and one line of text."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from llmgw_common.reason import Reason, ReasonCode

#: How each rule reads after a number of nodes.
_PHRASES: dict[ReasonCode, tuple[str, str]] = {
    ReasonCode.NOT_CONNECTED: ("is not connected", "are not connected"),
    ReasonCode.NODE_SUSPECT: ("has gone quiet", "have gone quiet"),
    ReasonCode.CORDONED: ("is cordoned", "are cordoned"),
    ReasonCode.NOT_IN_POOL: ("is not in the pool", "are not in the pool"),
    ReasonCode.ENGINE_UNSUPPORTED: ("does not run the engine", "do not run the engine"),
    ReasonCode.TOO_FEW_GPUS: ("has too few free GPUs", "have too few free GPUs"),
    ReasonCode.TOO_LITTLE_GPU_MEMORY: (
        "has GPUs with too little memory",
        "have GPUs with too little memory",
    ),
    ReasonCode.TOO_LITTLE_HOST_MEMORY: ("lacks host memory", "lack host memory"),
    ReasonCode.TOO_LITTLE_DISK: ("lacks disk", "lack disk"),
    ReasonCode.NO_PORTS: ("has no free port", "have no free port"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One candidate turned down.

    Attributes:
        candidate: name of the node (or of the group of nodes).
        profile: the profile that was tried there.
        reason: the first rule that failed, with its numbers.
        miss: how far off, 0 = nearly; the smallest is shown as the best.
    """

    candidate: str
    profile: str
    reason: Reason
    miss: float = 0.0


def summarize(profile: str, n_nodes: int, verdicts: Sequence[Verdict]) -> str:
    """Return one line like "0 of 3 nodes fit tp4: 2 are cordoned, 1 lacks disk (...)"."""
    if not n_nodes:
        return f"no node fits {profile}: no node has joined yet"
    counts = Counter(verdict.reason.code for verdict in verdicts)
    parts = []
    for code, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        one, many = _PHRASES.get(code, (code.value.replace("_", " "),) * 2)
        best = min(
            (v for v in verdicts if v.reason.code == code), key=lambda v: (v.miss, v.candidate)
        )
        text = f"{count} {one if count == 1 else many}"
        if best.miss:
            text += f" (best: {best.candidate}, {best.reason.text})"
        parts.append(text)
    return f"0 of {n_nodes} nodes fit {profile}: {', '.join(parts)}"
