"""The best bound on allreduce by cuts and groups of ranks and able switches, from all cuts and all partitions."""

from collections.abc import Iterator
from fractions import Fraction
from itertools import combinations

from chorale.synth.topology.topology import Topology
from tests.reference.pairs_by_all_cuts import joined

Capacities = dict[tuple[int, int], Fraction]


def best_rate_by_groups(topology: Topology) -> Fraction:
    """Return the smallest rate that a cut or a partition proves; every able switch adds and multicasts unlimited."""
    capacity = joined(topology)
    return min(*_cut_rates(topology, capacity), *_partition_rates(topology, capacity))


def _cut_rates(topology: Topology, capacity: Capacities) -> Iterator[Fraction]:
    ranks = topology.compute_count
    for mask in range(1, 2**topology.node_count - 1):
        inside = {node for node in range(topology.node_count) if mask >> node & 1}
        if 0 < sum(node < ranks for node in inside) < ranks:
            yield _into(capacity, inside)


def _partition_rates(topology: Topology, capacity: Capacities) -> Iterator[Fraction]:
    ranks = topology.compute_count
    passing = [node for node in range(ranks, topology.node_count) if node not in topology.abilities]
    with_passing = [set(chosen) for size in range(len(passing) + 1) for chosen in combinations(passing, size)]
    least: dict[frozenset[int], Fraction] = {}
    for groups in _partitions([*range(ranks), *sorted(topology.abilities)]):
        if len(groups) < 2 or not all(min(group) < ranks for group in groups):
            continue
        for group in map(frozenset, groups):
            if group not in least:
                least[group] = min(_into(capacity, group | more) for more in with_passing)
        total = sum((least[frozenset(group)] for group in groups), Fraction(0))
        yield total / (2 * (len(groups) - 1))


def _partitions(items: list[int]) -> Iterator[list[list[int]]]:
    if not items:
        yield []
        return
    for groups in _partitions(items[1:]):
        for index in range(len(groups)):
            yield [*groups[:index], [*groups[index], items[0]], *groups[index + 1 :]]
        yield [*groups, [items[0]]]


def _into(capacity: Capacities, inside: set[int] | frozenset[int]) -> Fraction:
    return sum((width for (src, dst), width in capacity.items() if dst in inside and src not in inside), Fraction(0))
