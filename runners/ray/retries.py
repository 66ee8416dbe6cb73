"""Which failed measurements are tried again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from types import MappingProxyType

from chorale.runners.api.base import FailureKind, Outcome, RunFailure

MAX_RETRIES: Mapping[FailureKind, int] = MappingProxyType(
    {FailureKind.CRASH: 2, FailureKind.UNAVAILABLE: 2, FailureKind.TIMEOUT: 1}
)
"""Further attempts by kind. A wrong result and a refusal are facts about the program: they are never tried again."""


class RetryPolicy:
    """Counts the failures of each request."""

    def __init__(self, limits: Mapping[FailureKind, int] = MAX_RETRIES) -> None:
        self._limits = limits
        self._failures: Counter[tuple[Hashable, FailureKind]] = Counter()

    def should_retry(self, key: Hashable, outcome: Outcome, is_elsewhere: Callable[[], bool]) -> bool:
        """Whether to try the request `key` again after `outcome`; a hang costs much: only elsewhere."""
        if not isinstance(outcome, RunFailure) or (outcome.kind == FailureKind.TIMEOUT and not is_elsewhere()):
            return False
        self._failures[key, outcome.kind] += 1
        return self._failures[key, outcome.kind] <= self._limits.get(outcome.kind, 0)
