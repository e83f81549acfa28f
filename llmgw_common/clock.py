"""Time, injected.

Rule 1: durations, deadlines and back-offs come from `monotonic_s()`: no jump of the wall clock
moves them.
Rule 2: `now()` is for people: display, key expiry, stored rows.
Rule 3: nobody else in the three packages reads a clock (ruff TID251 holds it).
"""

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """What code that acts may ask about time; pure code gets the numbers as arguments."""

    def now(self) -> datetime:
        """Return the wall time, aware, UTC."""
        ...

    def monotonic_s(self) -> float:
        """Return seconds on a clock that never goes back; its zero means nothing."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now(self) -> datetime:
        """Return the wall time, aware, UTC."""
        return datetime.now(UTC)

    def monotonic_s(self) -> float:
        """Return CLOCK_MONOTONIC in seconds."""
        return time.monotonic()


class FakeClock:
    """A clock that a test moves by hand."""

    def __init__(self, start_s: float = 1_000.0, start_at: datetime | None = None) -> None:
        self._monotonic_s = start_s
        self._now = start_at or datetime(2026, 1, 1, tzinfo=UTC)

    def now(self) -> datetime:
        """Return the wall time as moved so far."""
        return self._now

    def monotonic_s(self) -> float:
        """Return the monotonic seconds as moved so far."""
        return self._monotonic_s

    def advance(self, seconds: float) -> None:
        """Move both clocks on by `seconds`."""
        self._monotonic_s += seconds
        self._now += timedelta(seconds=seconds)

    def jump_wall(self, seconds: float) -> None:
        """Move only the wall clock, as an administrator or NTP does."""
        self._now += timedelta(seconds=seconds)


def at_from_age(clock: Clock, at_s: float | None) -> datetime | None:
    """Return the wall time of the monotonic instant `at_s`, for display; None stays None."""
    if at_s is None:
        return None
    return clock.now() - timedelta(seconds=clock.monotonic_s() - at_s)
