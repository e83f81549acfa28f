"""Room on the disk, promised to fetches before their first byte.

Rule 1: what one fetch was promised, another does not count as free.
Rule 2: `RESERVE_BYTES` stay free for everybody else on this disk.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from llmgw_agent.weights.blocking import disk_full

#: Room that fetches leave on the disk for everybody else.
RESERVE_BYTES: Final = 256 << 20


def free_bytes(folder: Path) -> int:
    """Return what is free on the disk of `folder`."""
    return shutil.disk_usage(folder).free


@dataclass(slots=True)
class DiskRoom:
    """The room under one folder.

    Attributes:
        look: gives the free bytes (a test's disk is as full as it says).
    """

    folder: Path
    look: Callable[[Path], int] = free_bytes
    _promised: dict[str, int] = field(default_factory=dict)

    def promise(self, key: str, needed_bytes: int) -> None:
        """Promise `needed_bytes` to `key`, instead of what it was promised before.

        Raises:
            LlmgwError: `disk_full`; the promise before is then void, too.
        """
        self._promised.pop(key, None)
        wanted = needed_bytes + RESERVE_BYTES + sum(self._promised.values())
        free = self.look(self.folder)
        if free < wanted:
            raise disk_full(self.folder, wanted, free)
        self._promised[key] = needed_bytes

    def written(self, key: str, left_bytes: int) -> None:
        """Note that `key` has only `left_bytes` still to write."""
        if key in self._promised:
            self._promised[key] = left_bytes

    def give_back(self, key: str) -> None:
        """End the promise to `key`."""
        self._promised.pop(key, None)
