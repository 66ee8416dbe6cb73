"""Probes of links: what whoever watches a fabric asks for, and what it is told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

Link = tuple[int, int]
"""From rank to rank; parallel links are one."""


@dataclass(frozen=True, slots=True)
class ProbeOutcome:
    """What became of a probe.

    packets:     that were sent together; 1 is a small one
    sent_s:      seconds since 1970
    has_arrived: all of them did
    rate_bits_per_s: of the link, headers counted; None for one packet, or if not all arrived
    latency_s:   of the first packet, from the sender's call to the receiver's kernel; None if it did not arrive
    """

    link: Link
    packets: int
    sent_s: float
    has_arrived: bool
    rate_bits_per_s: float | None
    latency_s: float | None


class Prober(Protocol):
    """Sends probes over single links of a network of ranks. One thread."""

    links: tuple[Link, ...]
    packet_bytes: int
    """Size on the link of a packet that is one of several."""

    def send(self, link: Link, packets: int) -> None:
        """Send one small packet, or several large ones right after one another, over `link` alone."""

    def receive(self, limit_s: float) -> Iterator[ProbeOutcome]:
        """Yield what became of probes since the last call, after waiting `limit_s` at most for the first."""

    def carried_bytes(self) -> Mapping[Link, int]:
        """Return how many bytes each link has carried since it is there, as its sender counts them, at the last look.

        Whoever looks asks for the next look. Links that nobody counts are left out.
        """

    def close(self) -> None:
        """End what probes. Safe to call twice."""
