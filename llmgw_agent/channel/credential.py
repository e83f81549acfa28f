"""What the agent keeps of its identity: the node credential, and the highest term it obeyed."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from llmgw_common.protocol.messages import Term

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """Who this node is to the server."""

    node_id: str
    node_name: str
    secret: str = field(repr=False)


class Identity:
    """The two files under the agent's data folder, readable by its user only."""

    def __init__(self, folder: Path) -> None:
        self._credential = folder / "credential.json"
        self._term = folder / "term.json"

    def credential(self) -> Credential | None:
        """Return the credential, None if the node has not joined."""
        found = _read(self._credential)
        try:
            return Credential(**found) if found else None
        except TypeError:
            log.warning("credential file cannot be read; joining again", file=str(self._credential))
            return None

    def keep_credential(self, credential: Credential) -> None:
        """Keep it, durably."""
        content = {
            "node_id": credential.node_id,
            "node_name": credential.node_name,
            "secret": credential.secret,
        }
        _write(self._credential, content)

    def term(self) -> Term:
        """Return the highest term obeyed so far."""
        return Term.model_validate(_read(self._term) or {})

    def keep_term(self, term: Term) -> None:
        """Keep it, durably; must be done before it is obeyed."""
        _write(self._term, term.model_dump())


def _read(path: Path) -> dict[str, str] | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _write(path: Path, content: Mapping[str, object]) -> None:
    staged = path.with_suffix(".new")
    descriptor = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())
    staged.rename(path)
