"""Searching for base graphs: random Cayley digraphs of a size, by seed, spread over an executor."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import numpy as np

from chorale.synth.errors import InvalidInput
from chorale.synth.executor.port import Executor, Progress
from chorale.synth.finder.bounds import least_steps
from chorale.synth.finder.candidate import TopologyCandidate, Traits
from chorale.synth.finder.groups import multiplication_table, semidirect_groups
from chorale.synth.finder.pareto import frontier
from chorale.synth.finder.query import FinderQuery
from chorale.synth.finder.trials import LOAD_UNIT, MAX_DEGREE, NO_LOAD, best_generators
from chorale.synth.topology.semidirect import SemidirectProduct

MAX_SEARCH_NODES = 2**11
_EXTRA_STEPS = 6
_WORK = 2**24
"""Elements that one task looks at."""


@dataclass(frozen=True, slots=True)
class CayleySearch:
    """What is searched for: Cayley digraphs of `nodes` and `degree`, with inverses of all generators or not."""

    nodes: int
    degree: int
    bidirectional: bool = False

    def __post_init__(self) -> None:
        if not self.is_possible(self.nodes, self.degree):
            limits = f"a degree from 2 to {MAX_DEGREE} and more nodes than that, at most {MAX_SEARCH_NODES}"
            rule = f"a search must have {limits}"
            raise InvalidInput(rule, f"{self.nodes} nodes of degree {self.degree}", "search for a smaller base")

    @staticmethod
    def is_possible(nodes: int, degree: int) -> bool:
        """Whether the search covers this size."""
        return degree < nodes <= MAX_SEARCH_NODES and 2 <= degree <= MAX_DEGREE

    @property
    def trials(self) -> int:
        """Generator sets that one seed tries."""
        return max(64, _WORK // (self.nodes * self.degree))


def searches_for(query: FinderQuery) -> list[CayleySearch]:
    """Return what is worth searching for a query: graphs of its size, and those whose line graphs are of its size."""
    hunts: list[CayleySearch] = []
    nodes = query.nodes
    while nodes > query.degree + 1:
        if CayleySearch.is_possible(nodes, query.degree):
            hunts.append(CayleySearch(nodes, query.degree, query.bidirectional))
        if query.bidirectional or nodes % query.degree or query.degree == 1:
            break
        nodes //= query.degree
    return hunts


def search_cayley_graphs(
    hunt: CayleySearch,
    seeds: Iterable[int],
    executor: Executor,
    previous: Iterable[TopologyCandidate] = (),
    progress: Progress | None = None,
) -> tuple[TopologyCandidate, ...]:
    """Return the Pareto-efficient Cayley digraphs among what all `seeds` find and what was `found` before.

    A task is one seed, tried on one group: seed s takes group s modulo their number. So a search can be stopped and
    taken up with the seeds that are missing; the union of seeds alone decides the answer, not who worked on them
    or when. Of equal cost, the first spec by taste stays. All are scored at the identity only, which is exact: Cayley
    digraphs are vertex-transitive.
    """
    tasks = [(hunt, seed) for seed in sorted(set(seeds))]
    everyone = list(previous)
    for candidates in executor.map(_hunt, tasks, None, progress):
        everyone += candidates
    return tuple(group[0] for group in frontier(everyone))


def _hunt(_shared: None, task: tuple[CayleySearch, int]) -> list[TopologyCandidate]:
    hunt, seed = task
    groups = _groups(hunt.nodes)
    group = groups[seed % len(groups)]
    most_steps = least_steps(hunt.nodes, hunt.degree, hunt.bidirectional) + _EXTRA_STEPS
    # A table that comes from another process may be read-only; this one is made here and remembered.
    table = multiplication_table(group)
    loads, generators = best_generators(table, hunt.degree, hunt.bidirectional, most_steps, hunt.trials, seed)
    return [
        _candidate(hunt, group, sorted(map(int, generators[steps])), steps, int(loads[steps]))
        for steps in np.flatnonzero(loads != NO_LOAD).tolist()
    ]


@cache
def _groups(order: int) -> tuple[SemidirectProduct, ...]:
    return tuple(semidirect_groups(order))


def _candidate(
    hunt: CayleySearch, group: SemidirectProduct, generators: list[int], steps: int, load: int
) -> TopologyCandidate:
    factor = Fraction(hunt.degree * load, hunt.nodes * LOAD_UNIT)
    spec = f"cayley:{group.m}.{group.k}.{group.r}.{group.l},{','.join(map(str, generators))}"
    return TopologyCandidate(
        spec=spec,
        method="bfb",
        nodes=hunt.nodes,
        degree=hunt.degree,
        steps=steps,
        bandwidth_factor=factor,
        exact=True,
        traits=Traits(
            simple=True,
            self_loops=False,
            bidirectional=hunt.bidirectional,
            reverse_symmetric=hunt.bidirectional,
        ),
        least_steps=steps,
        least_factor=factor,
        origin=(spec,),
    )
