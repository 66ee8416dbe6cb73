"""The interface of sources of reports about links, for programs that watch a fabric."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

Link = tuple[int, int]
"""(Source rank, destination rank); parallel links count as one."""


@dataclass(frozen=True, slots=True)
class LinkReport:
    """State of a link at a time.

    time_s:          seconds since 1970
    rate_bits_per_s: rate that the link can carry now; 0 if it is down
    carried_bytes:   bytes carried since the link was created; None if the source does not count them
    """

    link: Link
    time_s: float
    rate_bits_per_s: float
    carried_bytes: int | None = None


class LinkSource(Protocol):
    """Reports on the links of one network of ranks. Use it from one thread only.

    A source may report links periodically, or only when they change. The latest report of a link is valid.
    """

    declared_bits_per_s: Mapping[Link, float]
    """Rate of each link without faults."""

    def reports(self, limit_s: float) -> Iterator[LinkReport]:
        """Yield the reports since the last call, after waiting `limit_s` at most for the first.

        Raises Unavailable if there will be no more reports.
        """

    def close(self) -> None:
        """End the source. Safe to call twice."""
