"""The catalog in force and its numbered revisions.

Rule 1: a revision is stored before it is in force: an unanswered apply is wholly there or not.
Rule 2: an apply that changes nothing makes no revision.
Rule 3: one apply at a time; `if_revision` refuses when somebody else was quicker.
"""

from asyncio import Lock, to_thread
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from llmgw_common.clock import Clock
from llmgw_common.documents.catalog import Catalog, load_catalog
from llmgw_common.documents.diff import Change, diff_catalogs
from llmgw_common.errors import LlmgwError


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    """One numbered version: the text as it was applied, by whom and when."""

    number: int
    text: str
    at: datetime
    actor: str
    changes: int


class RevisionStore(Protocol):
    """Where revisions are kept."""

    async def add(self, revision: Revision) -> None:
        """Keep it, durably; raises LlmgwError `revision_changed` if the number is taken."""
        ...

    async def latest(self) -> Revision | None:
        """Return the newest."""
        ...

    async def history(self, limit: int) -> list[Revision]:
        """Return revisions, newest first."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What an apply did."""

    number: int
    changes: list[Change]

    @property
    def is_changed(self) -> bool:
        """A new revision was made."""
        return bool(self.changes)


class CatalogRevisions:
    """Holds the catalog in force."""

    def __init__(self, store: RevisionStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._lock = Lock()
        self._revision: Revision | None = None
        self._listeners: list[Callable[[], None]] = []
        self.catalog = Catalog()

    @property
    def revision(self) -> Revision | None:
        """The revision in force, None before the first apply."""
        return self._revision

    @property
    def number(self) -> int:
        """Its number, 0 before the first."""
        return self._revision.number if self._revision else 0

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call `listener` after each change."""
        self._listeners.append(listener)

    async def load(self) -> None:
        """Put the newest stored revision in force.

        Raises:
            InvalidDocumentError: this version of llmgw cannot read it; nothing is in force.
        """
        latest = await self._store.latest()
        if latest:
            self.catalog = load_catalog(latest.text, f"revision {latest.number}")
            self._revision = latest

    async def preview(self, text: str, file: str = "") -> list[Change]:
        """Return what `text` would change; raises InvalidDocumentError."""
        return diff_catalogs(self.catalog, await to_thread(load_catalog, text, file))

    async def apply(
        self, text: str, *, file: str = "", actor: str, if_revision: int | None = None
    ) -> Applied:
        """Put a catalog in force: all of it or nothing.

        Raises:
            InvalidDocumentError: every mistake in it.
            LlmgwError: `revision_changed`.
        """
        catalog = await to_thread(load_catalog, text, file)
        async with self._lock:
            if if_revision is not None and if_revision != self.number:
                text = f"the catalog is at revision {self.number}, not {if_revision}: look again"
                raise LlmgwError("revision_changed", text, revision=self.number)
            changes = diff_catalogs(self.catalog, catalog)
            if changes:
                revision = Revision(
                    number=self.number + 1,
                    text=text,
                    at=self._clock.now(),
                    actor=actor,
                    changes=len(changes),
                )
                await self._store.add(revision)
                self.catalog, self._revision = catalog, revision
        if changes:
            for listener in self._listeners:
                listener()
        return Applied(number=self.number, changes=changes)

    async def history(self, limit: int) -> list[Revision]:
        """Return revisions, newest first."""
        return await self._store.history(limit)
