"""states.md, errors.md and metrics.md: the words that programs may depend on."""

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

import llmgw_server.gateway
from docs.gen.markdown import code, summary, table
from llmgw_common import states as state_words
from llmgw_common.errors import ERROR_KINDS
from llmgw_common.reason import ReasonCode
from llmgw_server.fleet.model import FleetView, NodeState
from llmgw_server.gateway.metrics import GatewayMetrics
from llmgw_server.metrics import FleetCollector, ReconcilerMetrics


def states() -> str:
    """Return the page of states and reasons."""
    moves = [
        (
            code(state.value),
            ", ".join(
                code(after.value)
                for after in state_words.ShardState
                if after in followers and after is not state
            ),
        )
        for state in state_words.ShardState
        for followers in [state_words.SHARD_MOVES[state]]
    ]
    terminal = ", ".join(code(s.value) for s in sorted(state_words.TERMINAL_REPLICA_STATES))
    return "\n".join(
        (
            "# States and reasons",
            "",
            "```text",
            inspect.getdoc(state_words) or "",
            "```",
            "",
            "## Shard",
            "",
            table(("state", "may be followed by"), moves),
            "## Replica",
            "",
            ", ".join(code(state.value) for state in state_words.ReplicaState)
            + f"; {terminal} are final.",
            "",
            "## Node",
            "",
            " ".join(summary(NodeState).split()),
            "",
            "## Reasons",
            "",
            "Every action, verdict and event has one of these codes and a text with its numbers.",
            "",
            *_reason_groups(),
        )
    )


def errors() -> str:
    """Return the page of error codes."""
    kinds = [
        (code(name), str(kind.status), kind.title, "yes" if kind.is_retryable else "")
        for name, kind in sorted(ERROR_KINDS.items())
    ]
    return "\n".join(
        (
            "# Errors",
            "",
            "Codes are for programs and stay; texts are for people and may change.",
            "",
            "## Admin API",
            "",
            table(("code", "status", "meaning", "may work later"), kinds),
            "## Gateway",
            "",
            'In the shape of the API that was called: `{"error": {"message", "type", "param", '
            '"code"}}` for OpenAI\'s, `{"type": "error", "error": {"type", "message"}}` for '
            "Anthropic's. 429 and 503 carry `Retry-After`.",
            "",
            table(("code", "status", "message"), sorted(set(_refusals()))),
        )
    )


def metrics() -> str:
    """Return the page of metrics."""
    registry = CollectorRegistry()
    kept: list[Any] = [GatewayMetrics(registry), ReconcilerMetrics(registry)]
    registry.register(FleetCollector(FleetView))
    labels = {
        metric._name: metric._labelnames  # the library has no public name for them
        for holder in kept
        for metric in vars(holder).values()
    }
    rows = [
        (
            code(family.name + ("_total" if family.type == "counter" else "")),
            family.type,
            ", ".join(map(code, labels.get(family.name) or family._labelnames)),
            family.documentation,
        )
        for family in _families(registry)
    ]
    return "\n".join(
        (
            "# Metrics",
            "",
            "`GET /metrics` in Prometheus' text format: with `metrics_token` as a bearer token if "
            "one is set, else from loopback; an admin API key is always enough. Labels never hold "
            "a client's own words. Times are seconds.",
            "",
            table(("name", "type", "labels", "meaning"), sorted(rows)),
        )
    )


def _families(registry: CollectorRegistry) -> Iterator[Any]:
    for family in registry.collect():
        if not hasattr(family, "_labelnames"):
            family._labelnames = ()  # type: ignore[attr-defined]
        yield family


def _reason_groups() -> Iterator[str]:
    """The groups are the comments between the codes in the source."""
    names: list[str] = []
    for line in inspect.getsource(ReasonCode).splitlines():
        text = line.strip()
        if text.startswith("# "):
            if names:
                yield ", ".join(names) + "\n"
            names = []
            yield f"**{text[2:].capitalize()}**\n"
        elif " = " in text:
            names.append(code(ReasonCode[text.split(" = ")[0]].value))
    yield ", ".join(names)


def _refusals() -> Iterator[tuple[str, str, str]]:
    """Every `Refusal(status=..., code=..., message=...)` that the gateway's source holds."""
    folder = Path(llmgw_server.gateway.__path__[0])
    for file in sorted(folder.glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Refusal":
                given = {keyword.arg: keyword.value for keyword in node.keywords}
                status = _text(given["status"]).replace("...", "the engine's")
                yield code(_text(given["code"])), status, _text(given["message"])


def _text(node: ast.expr) -> str:
    match node:
        case ast.Constant(value=value):
            return str(value)
        case ast.JoinedStr(values=values):
            return "".join(_text(v) if isinstance(v, ast.Constant) else "..." for v in values)
        case _:
            return "..."
