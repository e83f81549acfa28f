"""What the node's owner allows, checked in one place."""

from collections.abc import Sequence
from pathlib import Path

from llmgw_common.errors import LlmgwError


def allowed_path(path: str, roots: Sequence[Path], setting: str, missing_code: str) -> Path:
    """Return the real path of `path` if it lies under one of `roots`; blocking.

    Links are followed first, so none leads out of the allowed folders.

    Args:
        path: as the catalog names it.
        roots: folders that agent.yaml allows.
        setting: where agent.yaml says so, for the error.
        missing_code: error code for a path that does not exist.

    Raises:
        LlmgwError: `refused_by_node`, or `missing_code`.
    """
    real = Path(path).resolve()
    known = [root.expanduser().resolve() for root in roots]
    if not any(real.is_relative_to(root) for root in known):
        names = ", ".join(map(str, known)) or "none"
        text = f"{path} is outside the folders of agent.yaml's {setting}: {names}"
        raise LlmgwError("refused_by_node", text)
    if not real.exists():
        raise LlmgwError(missing_code, f"{path} does not exist on this node")
    return real
