"""The kinds of engine that this agent can run: a new kind is one line here."""

from typing import Final

from llmgw_agent.engines.adapter import EngineAdapter
from llmgw_agent.engines.llama_cpp import LlamaCpp
from llmgw_agent.engines.simulated.adapter import Simulated
from llmgw_common.errors import LlmgwError

_ALL: Final[tuple[EngineAdapter, ...]] = (LlamaCpp(), Simulated())
ADAPTERS: Final[dict[str, EngineAdapter]] = {adapter.kind: adapter for adapter in _ALL}


def adapter_for(kind: str, allowed: list[str]) -> EngineAdapter:
    """Return the adapter of `kind`.

    Raises:
        LlmgwError: `refused_by_node`: the node's owner does not allow it, or this agent lacks it.
    """
    if kind not in allowed:
        names = ", ".join(allowed) or "none"
        text = f"engine kind {kind} is not allowed here (agent.yaml allow.engine_kinds: {names})"
        raise LlmgwError("refused_by_node", text)
    adapter = ADAPTERS.get(kind)
    if adapter is None:
        text = f"this agent version cannot run engine kind {kind} yet; it can: "
        raise LlmgwError("refused_by_node", text + ", ".join(sorted(ADAPTERS)))
    return adapter
