"""API keys: made, shown once, revoked at once; the first run makes an admin key."""

from asyncio import Lock
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Protocol

from llmgw_common.api_keys import digest, looks_valid, mint_key
from llmgw_common.clock import Clock
from llmgw_common.errors import LlmgwError
from llmgw_common.ids import IdSource, KeyId
from llmgw_server.gateway.auth import KeyRecord, KeyRing, Role


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredKey:
    """A key as it is kept."""

    record: KeyRecord
    created_at: datetime


class KeyStore(Protocol):
    """Where keys are kept."""

    async def all(self) -> list[StoredKey]:
        """Return every key."""
        ...

    async def put(self, key: StoredKey) -> None:
        """Keep a key, new or changed, durably."""
        ...


class ApiKeys:
    """All keys, in memory and in the store; a change is in force when the call returns."""

    def __init__(self, store: KeyStore, clock: Clock, ids: IdSource) -> None:
        self._store = store
        self._clock = clock
        self._ids = ids
        self._keys: dict[KeyId, StoredKey] = {}
        self._listeners: list[Callable[[], None]] = []
        self._ring = KeyRing({})
        #: One change at a time: two revocations must not both see the other admin key.
        self._changing = Lock()

    async def load(self) -> None:
        """Read the keys from the store."""
        self._keys = {key.record.key_id: key for key in await self._store.all()}
        self._changed()

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call `listener` after each change."""
        self._listeners.append(listener)

    @property
    def ring(self) -> KeyRing:
        """The keys as the gateway takes them."""
        return self._ring

    def all(self) -> list[StoredKey]:
        """Return every key, oldest first."""
        return sorted(self._keys.values(), key=lambda k: (k.created_at, k.record.key_id))

    def find(self, credential: str) -> KeyRecord | None:
        """Return the usable key of that text."""
        return self._ring.find(credential, self._clock.now())

    async def ensure_first_admin_key(self, bootstrap: str | None) -> str | None:
        """Make the first admin key if there is no key yet; return its text, once.

        Args:
            bootstrap: the text to use, as from a secret file; None mints one.

        Raises:
            LlmgwError: `invalid_config`, the bootstrap text is no key.
        """
        if self._keys:
            return None
        if bootstrap is not None and not looks_valid(bootstrap):
            text = "the bootstrap admin key is no llmgw key: make one with `llmgw keys mint`"
            raise LlmgwError("invalid_config", text)
        text = bootstrap or mint_key()
        await self._add(text, name="first-admin", role="admin")
        return text

    async def create(
        self, name: str, role: Role, models: frozenset[str] | None, expires_in_s: float | None
    ) -> tuple[StoredKey, str]:
        """Make a key; return it and its text, which is kept nowhere."""
        text = mint_key()
        expires_at = None
        if expires_in_s is not None:
            expires_at = self._clock.now() + timedelta(seconds=expires_in_s)
        key = await self._add(text, name=name, role=role, models=models, expires_at=expires_at)
        return key, text

    async def revoke(self, key_id: str) -> StoredKey:
        """Disable a key at once.

        Raises:
            LlmgwError: `not_found`; `conflict` for the last usable admin key.
        """
        async with self._changing:
            return await self._revoke(KeyId(key_id))

    async def _revoke(self, key_id: KeyId) -> StoredKey:
        key = self._keys.get(key_id)
        if key is None:
            raise LlmgwError("not_found", f"there is no key {key_id}")
        now = self._clock.now()
        others = [
            other
            for other in self._keys.values()
            if other.record.role == "admin"
            and other.record.is_usable(now)
            and other.record.key_id != key.record.key_id
        ]
        if key.record.role == "admin" and not others:
            text = "this is the last usable admin key: make another one before revoking it"
            raise LlmgwError("conflict", text)
        disabled = replace(key, record=replace(key.record, is_disabled=True))
        await self._put(disabled)
        return disabled

    async def _add(
        self,
        text: str,
        *,
        name: str,
        role: Role,
        models: frozenset[str] | None = None,
        expires_at: datetime | None = None,
    ) -> StoredKey:
        record = KeyRecord(
            key_id=KeyId(self._ids.new("key")),
            name=name,
            role=role,
            digest=digest(text),
            models=models,
            expires_at=expires_at,
        )
        key = StoredKey(record=record, created_at=self._clock.now())
        await self._put(key)
        return key

    async def _put(self, key: StoredKey) -> None:
        await self._store.put(key)
        self._keys[key.record.key_id] = key
        self._changed()

    def _changed(self) -> None:
        self._ring = KeyRing.of(key.record for key in self._keys.values())
        for listener in self._listeners:
            listener()
