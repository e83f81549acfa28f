"""This server's term: rises with every start, and above whatever an agent has seen."""

from asyncio import Lock
from typing import Protocol

from llmgw_common.ids import IdSource
from llmgw_common.protocol.messages import Term


class TermStore(Protocol):
    """Where the counter is kept."""

    async def raise_term(self, at_least: int) -> int:
        """Raise the stored counter by one, and to `at_least` at least; return it, durably."""
        ...


class ServerTerm:
    """Holds the term (channel.hub.TermKeeper)."""

    def __init__(self, store: TermStore, ids: IdSource) -> None:
        self._store = store
        self._leader_id = ids.new("srv")
        self._lock = Lock()
        self._term = Term()

    async def begin(self) -> None:
        """Begin a reign."""
        await self._raise(1)

    @property
    def term(self) -> Term:
        """The term that commands carry."""
        return self._term

    async def lift_above(self, seen: Term) -> None:
        """Raise the term above one that an agent has seen from another leader."""
        async with self._lock:
            is_ours = seen.leader_id in ("", self._leader_id)
            if seen.counter > self._term.counter or (
                seen.counter == self._term.counter and not is_ours
            ):
                await self._raise(seen.counter + 1)

    async def _raise(self, at_least: int) -> None:
        counter = await self._store.raise_term(at_least)
        self._term = Term(counter=counter, leader_id=self._leader_id)
