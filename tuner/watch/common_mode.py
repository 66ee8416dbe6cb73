"""What unrelated links show at the same time, which says more of who probes them than of these links.

A machine that is overloaded, or a network that is, loses and slows probes of all links alike. How often it does so at
the moment is seen at the links that share no rank with the one that is judged: a link counts as changed only if it
shows a symptom more often than these.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from chorale.runners.api.probes import Link

_MEMORIES_S = (1.0, 10.0)
"""Short, so that an overload that begins is seen at once, and longer, since its effects come in bursts."""
_PRIOR_LINKS = 6
"""As many other links are taken to show no symptom: that two or three do says little of a common cause."""


@dataclass(slots=True)
class _Counts:
    """Probes and those with a symptom, each worth less by a factor of e for each memory that has passed."""

    time_s: float = 0.0
    values: list[list[float]] = field(default_factory=lambda: [[0.0, 0.0] for _ in _MEMORIES_S])

    def age(self, now_s: float) -> None:
        passed_s, self.time_s = max(now_s - self.time_s, 0.0), max(now_s, self.time_s)
        for memory_s, pair in zip(_MEMORIES_S, self.values, strict=True):
            factor = math.exp(-passed_s / memory_s)
            pair[0] *= factor
            pair[1] *= factor

    def add(self, has_symptom: bool, now_s: float) -> None:
        self.age(now_s)
        for pair in self.values:
            pair[0] += 1.0
            pair[1] += has_symptom


class CommonMode:
    """One symptom on all links of a network. The cost of a probe is in proportion to the links at two ranks."""

    def __init__(self, links: Iterable[Link]) -> None:
        links = tuple(links)
        at: dict[int, list[Link]] = {}
        for link in links:
            for rank in link:
                at.setdefault(rank, []).append(link)
        self._related: dict[Link, Sequence[Link]] = {
            link: tuple({other for rank in link for other in at[rank]}) for link in links
        }
        self._of_link = {link: _Counts() for link in links}
        self._of_all = _Counts()

    def note(self, link: Link, has_symptom: bool, now_s: float) -> None:
        """Count a probe."""
        self._of_link[link].add(has_symptom, now_s)
        self._of_all.add(has_symptom, now_s)

    def share(self, link: Link, now_s: float) -> float:
        """Return the part of the latest probes that show the symptom, of links that share no rank with `link`.

        The larger one of what the last seconds and the last moment say; 0 where there are no such links, and less than
        the part of their probes by `_PRIOR_LINKS` links more that show none.
        """
        count = len(self._of_link) - len(self._related[link])
        if not count:
            return 0.0
        self._of_all.age(now_s)
        sums = [list(pair) for pair in self._of_all.values]
        for other in self._related[link]:
            counts = self._of_link[other]
            counts.age(now_s)
            for total, pair in zip(sums, counts.values, strict=True):
                total[0] -= pair[0]
                total[1] -= pair[1]
        share = max(max(symptoms, 0.0) / max(probes, 1.0) for probes, symptoms in sums)
        return min(share, 1.0) * count / (count + _PRIOR_LINKS)
