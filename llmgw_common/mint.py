"""The real id source, and a seeded one for tests and simulation."""

import random
import secrets


class RandomIds:
    """64 random bits an id: no two fleets, backups or servers ever meet on one."""

    def new(self, kind: str) -> str:
        """Return `kind-` and 16 hex digits."""
        return f"{kind}-{secrets.token_hex(8)}"


class SeededIds:
    """The same ids again for the same seed: for tests and simulation only."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)  # noqa: S311 - replays must repeat exactly

    def new(self, kind: str) -> str:
        """Return the next id of the seeded sequence."""
        return f"{kind}-{self._random.getrandbits(64):016x}"


def new_secret(n_bytes: int = 32) -> str:
    """Return a URL-safe secret of `n_bytes` random bytes (32 = 256 bits, 43 characters)."""
    return secrets.token_urlsafe(n_bytes)


def jitter(low: float, high: float) -> float:
    """Return a number drawn evenly between `low` and `high` (back-off of real connections)."""
    return low + (high - low) * (secrets.randbits(53) / (1 << 53))
