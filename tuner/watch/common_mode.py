"""What unrelated links show at the same time, which says more of who probes them than of these links.

A machine that is overloaded, or a network that is, loses and slows probes of all links alike. How often it does so at
the moment is seen at the links that share no rank with the one that is judged: a link counts as changed only if it
shows a symptom more often than these.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from chorale.runners.api.probes import Link

_MEMORIES_S = (1.0, 10.0)
"""Short, so that an overload that begins is seen at once, and longer, since its effects come in bursts."""
_PRIOR_LINKS = 6
"""As many other links are taken to show no symptom: that two or three do says little of a common cause."""


_MOST_MEMORIES = 300.0
"""After as many of the shortest memory all sums are made smaller, long before they become too large."""
_HARDLY_ANY = 1e-4


class _Sums:
    """Probes and those with a symptom, a sum for each memory. Later ones weigh more, so that no sum has to be aged."""

    __slots__ = ("probes", "symptoms")

    def __init__(self) -> None:
        self.probes = [0.0] * len(_MEMORIES_S)
        self.symptoms = [0.0] * len(_MEMORIES_S)

    def add(self, weights: Sequence[float], has_symptom: bool) -> None:
        for index, weight in enumerate(weights):
            self.probes[index] += weight
            if has_symptom:
                self.symptoms[index] += weight

    def scale(self, factors: Sequence[float]) -> None:
        self.probes = [value * factor for value, factor in zip(self.probes, factors, strict=True)]
        self.symptoms = [value * factor for value, factor in zip(self.symptoms, factors, strict=True)]


class CommonMode:
    """One symptom on all links of a network.

    A probe costs the same however many links there are. So does `share` while hardly any probe shows the symptom; else
    it takes time in proportion to the links at two ranks.
    """

    def __init__(self, links: Iterable[Link]) -> None:
        links = tuple(links)
        at: dict[int, list[Link]] = {}
        for link in links:
            for rank in link:
                at.setdefault(rank, []).append(link)
        self._related: dict[Link, Sequence[Link]] = {
            link: tuple({other for rank in link for other in at[rank]}) for link in links
        }
        self._of_link = {link: _Sums() for link in links}
        self._of_all = _Sums()
        self._start_s: float | None = None

    def note(self, link: Link, has_symptom: bool, now_s: float) -> None:
        """Count a probe."""
        weights = self._weights(now_s)
        self._of_link[link].add(weights, has_symptom)
        self._of_all.add(weights, has_symptom)

    def share(self, link: Link, now_s: float) -> float:
        """Return the part of the latest probes that show the symptom, of links that share no rank with `link`.

        The larger one of what the last seconds and the last moment say; 0 where there are no such links, and less than
        the part of their probes by `_PRIOR_LINKS` links more that show none.
        """
        count = len(self._of_link) - len(self._related[link])
        if not count or all(
            symptoms <= _HARDLY_ANY * probes
            for probes, symptoms in zip(self._of_all.probes, self._of_all.symptoms, strict=True)
        ):
            return 0.0
        related = [self._of_link[other] for other in self._related[link]]
        shares = []
        for index, weight in enumerate(self._weights(now_s)):
            probes = self._of_all.probes[index] - sum(sums.probes[index] for sums in related)
            symptoms = self._of_all.symptoms[index] - sum(sums.symptoms[index] for sums in related)
            shares.append(max(symptoms, 0.0) / max(probes, weight))  # less than a probe is none
        return min(max(shares), 1.0) * count / (count + _PRIOR_LINKS)

    def _weights(self, now_s: float) -> list[float]:
        """Return what a probe now weighs in the sums of each memory."""
        if self._start_s is None:
            self._start_s = now_s
        passed_s = now_s - self._start_s
        if passed_s > _MOST_MEMORIES * min(_MEMORIES_S):
            factors = [math.exp(-passed_s / memory_s) for memory_s in _MEMORIES_S]
            for sums in (self._of_all, *self._of_link.values()):
                sums.scale(factors)
            self._start_s, passed_s = now_s, 0.0
        return [math.exp(passed_s / memory_s) for memory_s in _MEMORIES_S]
