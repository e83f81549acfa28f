"""Which replica: the least loaded for its weight, in turn when they are equal.

Rule 1: counts belong to (replica id, epoch); they are given back in every exit and never below 0.
Rule 2: a replica that fails fast must not look idle: each failure weighs for a while (case L05).
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from llmgw_server.gateway.table import Target, TargetKey

#: A failed request weighs like so many running ones...
FAILURE_WEIGHT: Final = 8.0
#: ...for this long (seconds).
FAILURE_S: Final = 5.0
#: A weight of 0 means "last of all", and never a division by it.
WEIGHT_MIN: Final = 1e-6


@dataclass(slots=True)
class Balance:
    """In-flight counts, last uses and recent failures of every target.

    Attributes:
        last_used_at_s: when a request last began or ended on a target.
    """

    now_s: Callable[[], float]
    in_flight: dict[TargetKey, int] = field(default_factory=dict)
    last_used_at_s: dict[TargetKey, float] = field(default_factory=dict)
    _failed_at_s: dict[TargetKey, float] = field(default_factory=dict)
    _turn: int = 0

    def pick(self, targets: Sequence[Target], without: Collection[TargetKey]) -> Target | None:
        """Return the best target that was not tried yet, None if all were."""
        candidates = [target for target in targets if target.key not in without]
        if not candidates:
            return None
        self._turn += 1
        count = len(candidates)
        rotated = [candidates[(self._turn + i) % count] for i in range(count)]
        return min(rotated, key=self._load)

    def _load(self, target: Target) -> float:
        load = self.in_flight.get(target.key, 0) + 1.0
        failed_at_s = self._failed_at_s.get(target.key)
        if failed_at_s is not None and self.now_s() - failed_at_s < FAILURE_S:
            load += FAILURE_WEIGHT
        return load / max(target.weight, WEIGHT_MIN)

    def begin(self, target: Target) -> None:
        """A request goes to the target."""
        self.in_flight[target.key] = self.in_flight.get(target.key, 0) + 1
        self.last_used_at_s[target.key] = self.now_s()

    def end(self, target: Target, *, has_failed: bool) -> None:
        """It ended there."""
        left = self.in_flight.get(target.key, 0) - 1
        if left > 0:
            self.in_flight[target.key] = left
        else:
            self.in_flight.pop(target.key, None)
        self.last_used_at_s[target.key] = self.now_s()
        if has_failed:
            self._failed_at_s[target.key] = self.now_s()
        else:
            self._failed_at_s.pop(target.key, None)

    def forget(self, known: Collection[TargetKey]) -> None:
        """Drop what is kept of targets that left the table and run nothing."""
        for kept in (self.last_used_at_s, self._failed_at_s):
            for key in [key for key in kept if key not in known and key not in self.in_flight]:
                del kept[key]
