"""Who is asking: one extractor for every form of credential, one look-up, one text for every no.

Rule 1: `Authorization: Bearer` and `x-api-key` are the same; both with different values is a 400.
Rule 2: the key is hashed before anything is looked up; nothing a client sent reaches a query.
Rule 3: roles `admin` and `client` may use /v1; the others are for the admin API.
"""

import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Literal

from llmgw_common.api_keys import digest
from llmgw_common.ids import KeyId

Role = Literal["admin", "operator", "viewer", "client"]

GATEWAY_ROLES: Final = frozenset({"admin", "client"})

#: The one text for a missing, malformed, unknown, expired or disabled key.
UNAUTHENTICATED: Final = (
    "A valid API key is needed: send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'."
)


class ConflictingKeysError(Exception):
    """Two different keys came in one request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRecord:
    """What is known of a key.

    Attributes:
        models: names it may call, None for all.
    """

    key_id: KeyId
    name: str
    role: Role
    digest: bytes = field(repr=False)
    models: frozenset[str] | None = None
    expires_at: datetime | None = None
    is_disabled: bool = False

    def is_usable(self, now: datetime) -> bool:
        """Neither disabled nor expired."""
        return not self.is_disabled and (self.expires_at is None or now < self.expires_at)

    def may_call(self, *names: str) -> bool:
        """Say whether it may call a model known by these names (name and the alias used)."""
        return self.models is None or any(name in self.models for name in names)


#: Stands for everybody when `gateway.auth` is none.
ANYBODY: Final = KeyRecord(key_id=KeyId("anybody"), name="anybody", role="client", digest=b"")


@dataclass(frozen=True, slots=True)
class KeyRing:
    """All keys, by digest; swapped whole."""

    by_digest: Mapping[bytes, KeyRecord]

    @classmethod
    def of(cls, records: Iterable[KeyRecord]) -> "KeyRing":
        """Return a ring of these keys."""
        return cls({record.digest: record for record in records})

    def find(self, credential: str, now: datetime) -> KeyRecord | None:
        """Return the usable key of that text, or None; the same work for an unknown one."""
        sought = digest(credential)
        record = self.by_digest.get(sought)
        is_same = hmac.compare_digest(sought, record.digest if record else bytes(32))
        return record if record and is_same and record.is_usable(now) else None


def credential_of(authorization: Iterable[str], api_key: Iterable[str]) -> str | None:
    """Return the one credential of a request's header values, None if there is none.

    Raises:
        ConflictingKeysError: they differ.
    """
    found = set()
    for value in authorization:
        scheme, _, text = value.strip().partition(" ")
        if scheme.lower() == "bearer" and text.strip():
            found.add(text.strip())
    found.update(value.strip() for value in api_key if value.strip())
    if len(found) > 1:
        raise ConflictingKeysError
    return found.pop() if found else None
