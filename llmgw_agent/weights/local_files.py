"""Weights that are on the machine already: used in place, their hash verified once.

What was verified is remembered by size, time and inode, across restarts of the agent; a file that
was touched since is hashed again.
"""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from llmgw_agent.weights.blocking import Stop, sha256_of
from llmgw_agent.weights.manifest import Stamp, write_durably
from llmgw_common.errors import LlmgwError


class VerifiedFiles:
    """The memory of verified files, in one small JSON file."""

    def __init__(self, memory: Path) -> None:
        self._memory = memory

    def verify(
        self, path: Path, sha256: str, on_bytes: Callable[[int, int], None], stop: Stop
    ) -> None:
        """Let a file with that hash pass; blocking, reads it whole the first time.

        Args:
            path: real path of the file.
            sha256: hex, as the source says.
            on_bytes: called with bytes hashed and bytes of the file, in this thread.
            stop: ends the hashing.

        Raises:
            LlmgwError: `weights_unreadable`: another hash, or not a regular file.
        """
        if not path.is_file():
            text = f"{path} is no regular file, so it has no sha256; name a file in it"
            raise LlmgwError("weights_unreadable", text)
        stamp = Stamp.of(path)
        entry = {"sha256": sha256, **asdict(stamp)}
        known = self._read()
        if known.get(str(path)) == entry:
            return
        found = sha256_of(path, stop, lambda done: on_bytes(min(done, stamp.size), stamp.size))
        if found != sha256:
            text = f"{path} has sha256 {found}, the source says {sha256}: another or a broken file"
            raise LlmgwError("weights_unreadable", text)
        if Stamp.of(path) != stamp:
            raise LlmgwError("weights_unreadable", f"{path} changed while it was read")
        write_durably(self._memory, json.dumps(self._read() | {str(path): entry}))

    def _read(self) -> dict[str, object]:
        try:
            known = json.loads(self._memory.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return known if isinstance(known, dict) else {}
