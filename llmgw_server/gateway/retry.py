"""How often a request may be sent a second time: a budget, so that retries never make a storm.

Retries of the last `WINDOW_S` seconds may be a fifth of its requests, and `RETRIES_MIN` in any case
(design: overload, retries). Pure: the caller says what time it is.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

WINDOW_S: Final = 10.0
RETRIES_SHARE: Final = 0.2
#: Three a second over the window.
RETRIES_MIN: Final = 30


@dataclass(slots=True)
class _Second:
    at_s: float
    requests: int = 0
    retries: int = 0


@dataclass(slots=True)
class RetryBudget:
    """Counts requests and retries by the second."""

    _seconds: deque[_Second] = field(default_factory=deque)
    _requests: int = 0
    _retries: int = 0

    def request(self, now_s: float) -> None:
        """A request came."""
        self._second(now_s).requests += 1
        self._requests += 1

    def retry(self, now_s: float) -> None:
        """A request was sent once more."""
        self._second(now_s).retries += 1
        self._retries += 1

    def allows(self, now_s: float) -> bool:
        """Say whether one more retry is within the budget."""
        self._second(now_s)
        return self._retries < max(RETRIES_MIN, self._requests * RETRIES_SHARE)

    def _second(self, now_s: float) -> _Second:
        while self._seconds and now_s - self._seconds[0].at_s >= WINDOW_S:
            old = self._seconds.popleft()
            self._requests -= old.requests
            self._retries -= old.retries
        if not self._seconds or now_s - self._seconds[-1].at_s >= 1.0:
            self._seconds.append(_Second(now_s))
        return self._seconds[-1]
