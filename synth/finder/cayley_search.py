"""Searches random Cayley digraphs of a given size for good base topologies.

The groups are semidirect products of cyclic groups. Random seeds are distributed over an executor. A JSON log stores
the number of finished seeds and the specs of the graphs found.
"""

import json
import math
from collections.abc import Iterable, Mapping
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
    bfb_score,
    frontier,
    least_steps,
)
from chorale.synth.finder.constructions import divisors, traits_of
from chorale.synth.finder.find import FinderQuery
from chorale.synth.kernels import native
from chorale.synth.topology.families.directed import SemidirectProduct
from chorale.synth.topology.spec import parse_topology


@cache
def semidirect_groups(order: int) -> tuple[SemidirectProduct, ...]:
    """Return all groups Z_m x|_r Z_k x Z_l with m k l = `order` in which the order of r modulo m divides k.

    Cyclic groups come first. Some of the groups are isomorphic, which only costs time.
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


MAX_SEARCH_NODES = 2**11
_EXTRA_STEPS = 6
_SURELY = 18
_WORK = 2**24
"""Number of group elements that one task visits."""


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
        """Return whether a search for this size is supported."""
        return degree < nodes <= MAX_SEARCH_NODES and 2 <= degree <= MAX_DEGREE

    @property
    def trials(self) -> int:
        """Number of random generator sets to try per seed, but no more than are needed to almost surely try every set.

        Each set is drawn with a probability p of at least degree! / (nodes - 1)^degree. After (log(sets) + `_SURELY`) /
        p draws, the probability that any set has not been drawn is below e^-`_SURELY`.
        """
        inverse: int = -(-((self.nodes - 1) ** self.degree) // math.factorial(self.degree))
        sufficient = inverse * (inverse.bit_length() + _SURELY)
        return min(sufficient, max(64, _WORK // (self.nodes * self.degree)))


def searches_for(query: FinderQuery) -> list[CayleySearch]:
    """Return searches for graphs of the size of `query`, and for graphs whose (repeated) line graphs have this size."""
    searches: list[CayleySearch] = []
    nodes = query.nodes
    while nodes > query.degree + 1:
        if CayleySearch.is_possible(nodes, query.degree):
            searches.append(CayleySearch(nodes, query.degree, query.bidirectional))
        if query.bidirectional or nodes % query.degree or query.degree == 1:
            break
        nodes //= query.degree
    return searches


def search_cayley_graphs(
    search: CayleySearch,
    seeds: Iterable[int],
    executor: Executor,
    previous: Iterable[TopologyCandidate] = (),
    progress: Progress | None = None,
) -> tuple[TopologyCandidate, ...]:
    """Run `search` for all `seeds`. Return the Pareto-optimal Cayley digraphs among the results and `previous`.

    A task runs one seed on one group: seed s uses group s modulo the number of groups. The result depends only on the
    set of seeds, so a search can be stopped and continued later with the remaining seeds. Among graphs of equal cost,
    the first by `tie_break` is kept. Only the identity node of each graph is scored, which is exact because Cayley
    digraphs are vertex-transitive.
    """
    tasks = [(search, seed) for seed in sorted(set(seeds))]
    found = list(previous)
    for candidates in executor.map(_try_seed, tasks, None, progress):
        found += candidates
    return tuple(group[0] for group in frontier(found))


LOAD_UNIT = 840
"""Number of load units per shard. 840 = lcm(1, …, 8), so all loads are integers in these units."""

NO_LOAD = np.iinfo(np.int64).max


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


FORMAT = "chorale-base-search/1"
_MAX_SEEDS = 10**6


@dataclass(frozen=True, slots=True)
class SearchProgress:
    """Progress of a search: seeds 0 to `seeds` - 1 are finished, and `frontier` contains their best results."""

    seeds: int
    frontier: tuple[TopologyCandidate, ...]


def write_log(log: Mapping[CayleySearch, SearchProgress]) -> bytes:
    """Return the log as JSON that `read_log` can read, sorted by size of the searches' graphs."""
    searches = sorted(log, key=lambda search: (search.nodes, search.degree, search.bidirectional))
    entries = [
        {
            "nodes": search.nodes,
            "degree": search.degree,
            "bidirectional": search.bidirectional,
            "seeds": log[search].seeds,
            "found": [candidate.spec for candidate in log[search].frontier],
        }
        for search in searches
    ]
    return (json.dumps({"format": FORMAT, "hunts": entries}, indent=1) + "\n").encode()


def read_log(content: bytes, file_name: str) -> dict[CayleySearch, SearchProgress]:
    """Read a log written by `write_log`. The file need not be trusted: every spec is built and scored again.

    Raises:
        InvalidInput: if the content is not a valid log; the message names the file.
    """
    log = {}
    try:
        document = json.loads(content)
        if document["format"] != FORMAT:
            raise ValueError("another format")
        for entry in document["hunts"]:
            nodes, degree, seeds = counts = entry["nodes"], entry["degree"], entry["seeds"]
            if any(type(value) is not int for value in counts) or not 0 <= seeds <= _MAX_SEEDS:
                raise ValueError("counts that are not whole numbers in range")
            search = CayleySearch(nodes, degree, bool(entry["bidirectional"]))
            found = []
            for spec in map(str, entry["found"]):
                if not spec.startswith("cayley:"):
                    raise ValueError(f"a base that is not a Cayley digraph: {spec[:60]}")
                topology = parse_topology(spec)
                traits = traits_of(topology)
                if (topology.compute_count, topology.degree) != (nodes, degree):
                    raise ValueError(f"a base of another size: {spec[:60]}")
                if search.bidirectional and not traits.bidirectional:
                    raise ValueError(f"a base that is not bidirectional: {spec[:60]}")
                found.append(base_candidate(spec, nodes, degree, bfb_score(topology), traits))
            log[search] = SearchProgress(seeds, tuple(found))
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        rule = f"{file_name} must be a record of a search ({FORMAT})"
        raise InvalidInput(rule, str(error) or "something else", "start a new file") from None
    return log
