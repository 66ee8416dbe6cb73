"""Defines the interface of sources that report the state of a network's links: rate and traffic."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from chorale.synth.errors import Unavailable

Link = tuple[int, int]
"""(Source rank, destination rank); parallel links count as one."""
_STARTED_S = time.time() - time.monotonic()


def steady_unix_s() -> float:
    """Return the seconds since 1970 on a clock that never jumps: the wall clock at this process's start, plus monotonic
    time since then.
    """
    return _STARTED_S + time.monotonic()


@dataclass(frozen=True, slots=True)
class LinkReport:
    """The state of a link at one moment.

    time_s:          seconds since 1970, from `steady_unix_s`
    rate_bits_per_s: rate that the link can carry now; 0 if it is down
    carried_bytes:   bytes carried since the link was created; None if the source does not count them
    """

    link: Link
    time_s: float
    rate_bits_per_s: float
    carried_bytes: int | None = None


class NoReports(Unavailable):
    """Raised if a source has no reports now, but may have some later."""


class LinkSource(Protocol):
    """Reports the state of the links between the ranks of one network. Not thread-safe.

    A source may report links periodically, or only when they change. A link's latest report is valid until the next
    one. Chorale plans tables for a network only after the first report about this network.
    """

    declared_bits_per_s: Mapping[Link, float]
    """Rate of each link without faults."""

    def reports(self, limit_s: float) -> Iterator[LinkReport]:
        """Yield the reports since the last call, after waiting at most `limit_s` for the first.

        Raises NoReports if there are none now, and Unavailable if there will be no more.
        """

    def close(self) -> None:
        """End the source. Safe to call twice."""
