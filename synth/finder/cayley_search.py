"""Searches random Cayley digraphs of a given size for good base topologies.

The groups are semidirect products of cyclic groups. An executor distributes the random seeds over its workers.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, lru_cache

import numpy as np
from numpy.typing import NDArray

from chorale.synth.errors import InvalidInput
from chorale.synth.executor.base import Executor, Progress
from chorale.synth.finder.candidate import (
    MAX_DEGREE,
    AllgatherCost,
    TopologyCandidate,
    Traits,
    base_candidate,
    frontier,
    least_steps,
)
from chorale.synth.finder.constructions import divisors
from chorale.synth.finder.find import FinderQuery, Stage
from chorale.synth.kernels import native
from chorale.synth.topology.families.directed import SemidirectProduct

Bases = dict[tuple[int, int], tuple[TopologyCandidate, ...]]
"""Maps (nodes, degree) to the base networks of this size."""
LOAD_UNIT = 840
"""Number of load units per shard. It is lcm(1, …, 8), so all loads are integers in these units."""
NO_LOAD = np.iinfo(np.int64).max
MAX_SEARCH_NODES = 2**11
_EXTRA_STEPS = 6
_SURELY = 18
_WORK = 2**24
"""Approximate limit on nodes * degree * trials in one task, which always makes 64 trials if that many are useful."""


@cache
def semidirect_groups(order: int) -> tuple[SemidirectProduct, ...]:
    """Return the groups (Z_m x|_r Z_k) x Z_l, with m k l = `order`, for all r whose order modulo m divides k.

    The tuple begins with the cyclic groups. Some of the groups are isomorphic, which wastes time but does no harm.
    """
    groups = [SemidirectProduct(order, 1, 1)]
    for m in divisors(order)[1:]:
        for k in divisors(order // m)[1:]:
            products = (SemidirectProduct(m, k, r, order // (m * k)) for r in range(1, m))
            groups += [group for group in products if group.is_group]
    return tuple(groups)


@lru_cache(maxsize=8)
def multiplication_table(group: SemidirectProduct) -> NDArray[np.int32]:
    """Return int32[order, order], in which entry [g, x] is the product of x and g. O(order^2) time and memory."""
    elements = np.arange(group.order)
    rows = [group.product(elements, np.full_like(elements, generator)) for generator in elements]
    return np.array(rows, dtype=np.int32)


@dataclass(frozen=True, slots=True)
class CayleySearch:
    """A search for Cayley digraphs with `nodes` nodes and degree `degree`.

    bidirectional: whether generator sets must contain the inverses of all generators
    """

    nodes: int
    degree: int
    bidirectional: bool = False

    def __post_init__(self) -> None:
        if not self.is_possible(self.nodes, self.degree):
            limits = f"a degree from 2 to {MAX_DEGREE} and more nodes than that, at most {MAX_SEARCH_NODES}"
            value = f"{self.nodes} nodes of degree {self.degree}"
            raise InvalidInput(f"a search must have {limits}", value, "search for a smaller base")

    @staticmethod
    def is_possible(nodes: int, degree: int) -> bool:
        return degree < nodes <= MAX_SEARCH_NODES and 2 <= degree <= MAX_DEGREE

    @property
    def trials(self) -> int:
        """Number of random generator sets to try per seed. In small searches, they almost surely include every set.

        A draw gives a particular set with probability p >= degree! / (nodes - 1)^degree. After (log(sets) + `_SURELY`)
        / p draws, the probability that any set is missing is below e^-`_SURELY`.
        """
        inverse: int = -(-((self.nodes - 1) ** self.degree) // math.factorial(self.degree))
        sufficient = inverse * (inverse.bit_length() + _SURELY)
        return min(sufficient, max(64, _WORK // (self.nodes * self.degree)))


def search_bases(query: FinderQuery, seeds: int, executor: Executor, stage: Stage) -> Bases:
    """Search for graphs of the size in `query`, and for smaller graphs whose (repeated) line graphs have this size.

    Uses seeds 0 to `seeds` - 1. Returns the Pareto-optimal graphs of each size. Calls `stage` before each search.
    """
    bases: Bases = {}
    nodes = query.nodes
    while nodes > query.degree + 1:
        if CayleySearch.is_possible(nodes, query.degree):
            search, progress = CayleySearch(nodes, query.degree, query.bidirectional), stage(f"bases of {nodes} nodes")
            bases[nodes, query.degree] = search_cayley_graphs(search, range(seeds), executor, progress)
        if query.bidirectional or nodes % query.degree or query.degree == 1:
            break
        nodes //= query.degree
    return bases


def search_cayley_graphs(
    search: CayleySearch, seeds: Iterable[int], executor: Executor, progress: Progress | None = None
) -> tuple[TopologyCandidate, ...]:
    """Run `search` for all `seeds`. Return the Pareto-optimal Cayley digraphs that were found.

    A task searches one group with one seed: seed s uses group number s modulo the number of groups. The result depends
    only on the set of seeds. Among graphs of equal cost, the first by `tie_break` is kept. Only the identity node of
    each graph is scored, which is exact because Cayley digraphs are vertex-transitive.
    """
    tasks = [(search, seed) for seed in sorted(set(seeds))]
    found = [candidate for some in executor.map(_try_seed, tasks, None, progress) for candidate in some]
    return tuple(group[0] for group in frontier(found))


def _try_seed(_shared: None, task: tuple[CayleySearch, int]) -> list[TopologyCandidate]:
    search, seed = task
    nodes, degree, two_way = search.nodes, search.degree, search.bidirectional
    groups = semidirect_groups(nodes)
    group = groups[seed % len(groups)]
    most_steps = least_steps(nodes, degree, two_way) + _EXTRA_STEPS
    table = multiplication_table(group)
    loads, generators = native.best_generators(table, degree, two_way, most_steps, search.trials, seed)
    traits = Traits(simple=True, self_loops=False, bidirectional=two_way, reverse_symmetric=two_way)
    found = []
    for steps in np.flatnonzero(loads != NO_LOAD).tolist():
        names = ",".join(map(str, sorted(generators[steps].tolist())))
        spec = f"cayley:{group.m}.{group.k}.{group.r}.{group.l},{names}"
        factor = Fraction(degree * int(loads[steps]), nodes * LOAD_UNIT)
        found.append(base_candidate(spec, nodes, degree, AllgatherCost(steps, factor), traits))
    return found
