"""Partitions of ranks and of switches that act into groups, and what the links into them prove about allreduce."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from chorale.synth.topology.topology import Topology

_MOST_NEIGHBOURS = 16
_MOST_PASSING = 32
_SMALL = 200
"""Nodes up to which more than the next switches around a group are tried."""
FEW_ACTORS = 14
"""Partitions of so many are improved by moving one at a time."""

Label = list[int]
"""The group of each node, -1 for none."""


@dataclass(frozen=True, slots=True, eq=False)
class GroupedFabric:
    """Links by the end whose receipts (or sends) are counted.

    into:       per node, (other end, bandwidth in units) of the links there; far: the same seen from the other end
    processing: switches that must be part of a process where receipts (or sends) are counted
    limits:     of switches that add a limited amount, how much, in units
    """

    topology: Topology
    into: list[list[tuple[int, int]]]
    far: list[list[tuple[int, int]]]
    processing: set[int]
    limits: dict[int, Fraction]
    scale: int

    @staticmethod
    def of(topology: Topology, outward: bool) -> GroupedFabric:
        """Return the fabric for receipts, or for sends (`outward`). O(links)."""
        links = topology.links
        units, scale = links.integer_bandwidths()
        near, far = (links.src, links.dst) if outward else (links.dst, links.src)
        into: list[list[tuple[int, int]]] = [[] for _ in range(topology.node_count)]
        back: list[list[tuple[int, int]]] = [[] for _ in range(topology.node_count)]
        for head, tail, width in zip(near.tolist(), far.tolist(), units.tolist(), strict=True):
            if head != tail:
                into[head].append((tail, width))
                back[tail].append((head, width))
        abilities = topology.abilities.items()
        processing = {node for node, ability in abilities if (ability.multicast if outward else ability.reduce)}
        limits = {
            node: ability.reduce_bandwidth * scale
            for node, ability in abilities
            if not outward and ability.reduce_bandwidth is not None
        }
        return GroupedFabric(topology, into, back, processing, limits, scale)

    def entering(self, group: set[int]) -> int:
        """Return the bandwidth of the links into `group`."""
        return sum(width for node in group for other, width in self.into[node] if other not in group)

    def grouped(self, label: Label, members: set[int]) -> list[set[int]]:
        """Return groups as labelled, each with a rank: switches without one join the group where they cost least."""
        groups: dict[int, set[int]] = {}
        for node, name in enumerate(label):
            if name >= 0:
                groups.setdefault(name, set()).add(node)
        covered = set().union(*groups.values())
        loose = [{node} for node in sorted(members - covered)]
        loose += [group for group in groups.values() if min(group) >= self.topology.compute_count]
        homes = [group for group in groups.values() if min(group) < self.topology.compute_count]
        home_of = {node: index for index, group in enumerate(homes) for node in group}
        for switches in loose:
            best = self._cheapest(switches, homes, home_of)
            homes[best] |= switches
            home_of |= dict.fromkeys(switches, best)
        return [self._with_passing(group, members) for group in homes]

    def _cheapest(self, switches: set[int], homes: list[set[int]], home_of: dict[int, int]) -> int:
        """Return the number of the group near `switches` into which least leads with them."""
        costs: dict[int, int] = {}
        seen, waiting = set(switches), sorted(switches)
        while waiting and len(costs) < _MOST_NEIGHBOURS:
            node = waiting.pop(0)
            for other, _ in (*self.into[node], *self.far[node]):
                if other in home_of:
                    index = home_of[other]
                    if index not in costs:
                        joined = self._with_passing(homes[index] | switches, self.processing)
                        added = joined - homes[index]
                        # As much more leads into both as into the home alone.
                        costs[index] = sum(
                            self._opened(each, joined) - self._shut(each, homes[index]) for each in added
                        )
                elif other not in seen:
                    seen.add(other)
                    waiting.append(other)
        return min(costs, key=lambda index: (costs[index], index), default=0)

    def _cost(self, home: set[int], switches: set[int]) -> int:
        """Return how much more bandwidth leads into `home` with `switches` than without."""
        joined = self._with_passing(home | switches, self.processing)
        return sum(self._opened(node, joined) - self._shut(node, home) for node in joined - home)

    def _with_passing(self, group: set[int], members: set[int]) -> set[int]:
        """Return `group` with switches around it that narrow what leads in: added, or left of all, one at a time."""
        around = self._passing_around(group, members)
        if not around:
            return set(group)
        grown, shrunk = set(group), group | around
        waiting = sorted(around)
        while waiting:
            node = waiting.pop()
            if node not in grown and self._shut(node, grown) > self._opened(node, grown):
                grown.add(node)
                waiting += [other for other, _ in self.into[node] if other in around]
        waiting = sorted(around)
        while waiting:
            node = waiting.pop()
            inside = shrunk - {node}
            if node in shrunk and self._opened(node, inside) > self._shut(node, inside):
                shrunk = inside
                waiting += [other for other, _ in self.far[node] if other in around]
        return min(grown, shrunk, key=self.entering)

    def _passing_around(self, group: set[int], members: set[int]) -> set[int]:
        """Return switches from which only such lead to `group`; those next to it on large networks."""
        around, waiting = set[int](), sorted(group)
        most = _MOST_PASSING if self.topology.node_count <= _SMALL else 0
        while waiting:
            node = waiting.pop(0)
            for other, _ in self.into[node]:
                is_passing = other >= self.topology.compute_count and other not in members
                if is_passing and other not in around and (node in group or len(around) < most):
                    around.add(other)
                    waiting.append(other)
        return around

    def _shut(self, node: int, group: set[int]) -> int:
        return sum(width for other, width in self.far[node] if other in group)

    def _opened(self, node: int, group: set[int]) -> int:
        return sum(width for other, width in self.into[node] if other not in group)

    def proven_time(self, groups: Sequence[set[int]], outside: Iterable[int]) -> Fraction | None:
        """Return the time per byte that `groups` prove, with limited adders `outside`; None for fewer than two."""
        count = len(groups)
        if count < 2:
            return None
        total = Fraction(sum(map(self.entering, groups)))
        sums = sum((self.limits[node] for node in outside), Fraction(0))
        rate = (total + sums * (count - 2)) / (2 * (count - 1)) if total >= count * sums else total / count
        return self.scale / rate

    def improved(self, label: Label, members: set[int], outside: Sequence[int]) -> Label:
        """Return `label` after moves of one rank or switch to another group, and joins of two, that prove more."""
        best, value = list(label), self._proved(label, members, outside)
        is_better = True
        while is_better:
            is_better = False
            for candidate in _neighbours(best, self.topology.compute_count):
                time = self._proved(candidate, members, outside)
                if time is not None and (value is None or time > value):
                    best, value, is_better = candidate, time, True
                    break
        return best

    def _proved(self, label: Label, members: set[int], outside: Sequence[int]) -> Fraction | None:
        return self.proven_time(self.grouped(label, members), outside)


def _neighbours(label: Label, ranks: int) -> Iterator[Label]:
    """Yield labels with one rank or labelled switch in another group or alone, and with two groups joined."""
    names = sorted({name for name in label if name >= 0})
    for node, name in enumerate(label):
        for other in [*names, node] if name >= 0 else []:
            if other != name:
                moved = list(label)
                moved[node] = other if other != node or other not in names else len(label) + node
                yield moved
    for index, name in enumerate(names):
        for other in names[:index]:
            yield [other if group == name else group for group in label]
