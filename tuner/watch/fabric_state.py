"""What is left of a fabric, by the states of its links: a topology spec for planning."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

from chorale.runners.api.probes import Link
from chorale.synth.topology.topology import Topology
from chorale.tuner.watch.link_monitor import LinkMonitor, LinkState

STEPS = 20
"""Rates of slow links are taken in twentieths of the declared one: a plan is not made anew for less."""


@dataclass(frozen=True, slots=True)
class FabricState:
    """What differs from the declared fabric.

    dead:  links that carry nothing
    slow:  links with the part of their declared rate that they carry
    nodes: ranks that are cut off
    """

    dead: frozenset[Link] = frozenset()
    slow: frozenset[tuple[Link, Fraction]] = frozenset()
    nodes: frozenset[int] = frozenset()

    @staticmethod
    def of(monitors: Mapping[Link, LinkMonitor]) -> FabricState:
        """Return the state that the monitors see."""
        dead = {link for link, monitor in monitors.items() if not monitor.rate_bits_per_s}
        slow = {
            (link, _part(monitor))
            for link, monitor in monitors.items()
            if monitor.state == LinkState.SLOW and link not in dead
        }
        nodes = frozenset(_cut_off(monitors, dead))
        dead_between = frozenset(link for link in dead if not nodes & set(link))
        return FabricState(dead_between, frozenset(item for item in slow if not nodes & set(item[0])), nodes)

    @property
    def is_healthy(self) -> bool:
        """Whether it is as declared."""
        return not (self.dead or self.slow or self.nodes)

    def ranks(self, healthy: Topology) -> tuple[int, ...]:
        """Return the ranks that are left; those of `spec` have their numbers in this order."""
        return tuple(rank for rank in range(healthy.compute_count) if rank not in self.nodes)

    def spec(self, healthy: Topology) -> str:
        """Return the spec of what is left; the same text for the same state."""
        text = healthy.spec
        by_part: dict[Fraction, list[Link]] = {}
        for link, part in sorted(self.slow):
            by_part.setdefault(part, []).append(link)
        for part, links in sorted(by_part.items()):
            text = f"scaled({text}{_named(links)};factor={part})"
        if self.dead or self.nodes:
            nodes = "".join(f";node={node}" for node in sorted(self.nodes))
            text = f"without({text}{nodes}{_named(sorted(self.dead))})"
        return text

    def __str__(self) -> str:
        parts = [f"node {node} is lost" for node in sorted(self.nodes)]
        parts += [f"link {src}>{dst} is dead" for src, dst in sorted(self.dead)]
        parts += [f"link {src}>{dst} at {float(part):.0%}" for (src, dst), part in sorted(self.slow)]
        return ", ".join(parts) or "all links are healthy"


def _part(monitor: LinkMonitor) -> Fraction:
    """Return the part of its declared rate that a slow link has, between 1/STEPS and what is no longer slow."""
    steps = round(monitor.rate_bits_per_s / monitor.declared_bits_per_s * STEPS)
    return Fraction(min(max(steps, 1), STEPS - 1), STEPS)


def _cut_off(links: Iterable[Link], dead: set[Link]) -> list[int]:
    """Return the ranks into which, or out of which, all links are dead."""
    alive = [link for link in links if link not in dead]
    ranks = {rank for link in links for rank in link}
    return sorted(ranks - ({src for src, _ in alive} & {dst for _, dst in alive}))


def _named(links: Iterable[Link]) -> str:
    return "".join(f";link={src}>{dst}" for src, dst in links)


def single_losses(links: Iterable[Link]) -> Iterator[FabricState]:
    """Yield the states in which two neighbours are no longer joined, in either direction; then those without a rank."""
    pairs = {(min(link), max(link)) for link in links}
    present = set(links)
    for src, dst in sorted(pairs):
        yield FabricState(dead=frozenset({(src, dst), (dst, src)} & present))
    for rank in sorted({rank for link in present for rank in link}):
        yield FabricState(nodes=frozenset({rank}))
