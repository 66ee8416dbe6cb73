"""Track the states of links, and give a topology spec of the part of the fabric that still works, for planning."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from pathlib import Path

from chorale.runners.api.link_reports import Link, LinkReport, NoReports
from chorale.synth.errors import InvalidInput
from chorale.synth.topology.topology import Topology

SLOW_BELOW = 0.85
"""A link whose rate is below this fraction of its declared rate is slow."""
FLAPS, FLAP_WINDOW_S, QUIET_S = 4, 60.0, 30.0
"""A link that changes `FLAPS` times in `FLAP_WINDOW_S` s is flapping until it has been unchanged for `QUIET_S` s."""
STEPS = 20
"""Slow links' rates are rounded to multiples of 1/20 of the declared rate, so that small changes cause no new plan."""


class LinkState(StrEnum):
    """The states of a link: healthy (declared rate), slow (lower rate), dead (down), flapping (changes too often)."""

    HEALTHY = "healthy"
    SLOW = "slow"
    FLAPPING = "flapping"
    DEAD = "dead"


@dataclass(slots=True)
class LinkTracker:
    """Tracks a link's state, and the time `since_s` at which it began. `_changes` has the times of recent changes."""

    declared_bits_per_s: float
    since_s: float = 0.0
    _steady: LinkState = LinkState.HEALTHY
    _rate: float = 0.0
    _is_flapping: bool = False
    _changes: deque[float] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self._rate = self._rate or self.declared_bits_per_s

    @property
    def state(self) -> LinkState:
        return LinkState.FLAPPING if self._is_flapping else self._steady

    @property
    def in_force_bits_per_s(self) -> float:
        """Return the rate to use for planning, in bits per second: 0 if the link is dead or flapping."""
        return self._rate if self.state in (LinkState.HEALTHY, LinkState.SLOW) else 0.0

    @property
    def part(self) -> Fraction:
        """Return a slow link's rate divided by its declared rate, as a multiple of 1/20 between 0 and 1 (exclusive)."""
        steps = round(self._rate / self.declared_bits_per_s * STEPS)
        return Fraction(min(max(steps, 1), STEPS - 1), STEPS)

    def report(self, time_s: float, rate_bits_per_s: float) -> tuple[LinkState, LinkState] | None:
        """Process a reported rate. Return (old, new) state if the state or a slow link's rate changed, else None."""
        before, part_before = self.state, self.part
        steady = LinkState.HEALTHY
        if rate_bits_per_s < SLOW_BELOW * self.declared_bits_per_s:
            steady = LinkState.SLOW if rate_bits_per_s > 0 else LinkState.DEAD
        if steady != self._steady:
            self._steady = steady
            self._changes.append(time_s)
            while self._changes[0] < time_s - FLAP_WINDOW_S:
                self._changes.popleft()
            self._is_flapping = self._is_flapping or len(self._changes) >= FLAPS
        elif self._is_flapping and time_s >= self._changes[-1] + QUIET_S:
            self._is_flapping = False
            self._changes.clear()
        self._rate = self.declared_bits_per_s if steady == LinkState.HEALTHY else rate_bits_per_s
        if self.state == before and (before != LinkState.SLOW or self.part == part_before):
            return None
        self.since_s = time_s if self.state != before else self.since_s
        return before, self.state


@dataclass(frozen=True, slots=True)
class FabricState:
    """The faults of a fabric: its differences from the declared network.

    dead:  links that must not be used
    slow:  pairs (slow link, remaining fraction of its declared rate)
    nodes: ranks that are cut off; their links are not listed in `dead` and `slow`
    """

    dead: frozenset[Link] = frozenset()
    slow: frozenset[tuple[Link, Fraction]] = frozenset()
    nodes: frozenset[int] = frozenset()

    @staticmethod
    def of(trackers: Mapping[Link, LinkTracker]) -> FabricState:
        """Return the fabric's state. A rank is cut off if all its incoming or all its outgoing links are dead."""
        dead = {link for link, tracker in trackers.items() if not tracker.in_force_bits_per_s}
        alive = trackers.keys() - dead
        ranks = {rank for link in trackers for rank in link}
        nodes = frozenset(ranks - ({src for src, _ in alive} & {dst for _, dst in alive}))
        slow = {
            (link, trackers[link].part)
            for link in alive
            if trackers[link].state == LinkState.SLOW and not nodes & set(link)
        }
        return FabricState(frozenset(link for link in dead if not nodes & set(link)), frozenset(slow), nodes)

    def ranks(self, healthy: Topology) -> tuple[int, ...]:
        """Return the ranks that remain, in the order in which the remaining network numbers its ranks."""
        return tuple(rank for rank in range(healthy.compute_count) if rank not in self.nodes)

    def spec(self, healthy: Topology) -> str:
        """Return the spec of the remaining network. Equal states give equal strings."""
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


class ListedLinks:
    """A `LinkSource` that reads a file in which a cluster's monitoring lists the faulty links.

    Each line is `A-B RATE`, `A>B RATE` (one direction) or `RANK RATE` (all links of the rank), with RATE in Gbit/s.
    Without RATE, the link is down. Links that are not listed have their declared rate.
    """

    def __init__(self, topology: Topology, path: Path, bits_per_unit: Fraction) -> None:
        """Raise InvalidInput if the network has switches, because nothing reports the states of a switch's links."""
        links, self._path, self._text = topology.links, path, ""
        if topology.node_count > topology.compute_count:
            way_out = f"write a table for the rest: chorale table write --topology 'without({topology.spec};node=0)'"
            raise InvalidInput("`links` needs a network without switches, not {}", topology.spec, way_out)
        declared: dict[Link, float] = {}
        for src, dst, number in zip(
            links.src.tolist(), links.dst.tolist(), links.bandwidth_class.tolist(), strict=True
        ):
            if src != dst:
                declared[src, dst] = declared.get((src, dst), 0.0) + float(links.bandwidths[number] * bits_per_unit)
        self.declared_bits_per_s: Mapping[Link, float] = declared
        self._is_new = True

    def reports(self, limit_s: float) -> Iterator[LinkReport]:
        """If the file has changed, yield a report about each link.

        Raises InvalidInput for a line that cannot be read, and NoReports while there is no file.
        """
        try:
            text = self._path.read_text(encoding="utf-8")
        except OSError as error:
            time.sleep(limit_s)
            rule, way_out = "cannot read the list of faulty links: {}", "if no link is faulty, write an empty file"
            raise NoReports(rule, f"{self._path}: {error.strerror}", way_out) from error
        if text == self._text and not self._is_new:
            time.sleep(limit_s)
            return
        self._text, self._is_new = text, False
        rates = dict(self.declared_bits_per_s)
        for line in text.splitlines():
            for link, rate in self._faults(line.partition("#")[0].strip()):
                rates[link] = min(rates[link], rate)
        for link, rate in rates.items():
            yield LinkReport(link, time.time(), rate)

    def close(self) -> None:
        """Do nothing: the file is not kept open."""

    def _faults(self, line: str) -> Iterator[tuple[Link, float]]:
        found = re.fullmatch(r"(?:(\d+)(?:([->])(\d+))?(?:[ ,\t]+(\d+(?:\.\d*)?))?)?", line)
        ranks = {rank for link in self.declared_bits_per_s for rank in link}
        if found is None or not {int(rank) for rank in found.group(1, 3) if rank} <= ranks:
            rule = f"{self._path} lists links of the network as A-B RATE, A>B RATE or RANK RATE (Gbit/s), not {{}}"
            raise InvalidInput(rule, line, "repair this line")
        one, arrow, other, rate = found.groups()
        for link in self.declared_bits_per_s if one else ():
            ends = {int(one), int(other or one)}
            if ends <= set(link) and (arrow != ">" or link[0] == int(one)):
                yield link, float(rate or 0) * 1e9


def single_losses(links: Iterable[Link]) -> Iterator[FabricState]:
    """Yield the fabric's state after each single failure: first of each cable (both directions), then of each rank."""
    present = set(links)
    for src, dst in sorted({(min(link), max(link)) for link in present}):
        yield FabricState(dead=frozenset({(src, dst), (dst, src)} & present))
    for rank in sorted({rank for link in present for rank in link}):
        yield FabricState(nodes=frozenset({rank}))


def _named(links: Iterable[Link]) -> str:
    return "".join(f";link={src}>{dst}" for src, dst in links)
