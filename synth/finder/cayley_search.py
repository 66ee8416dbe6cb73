"""Search for base graphs: random Cayley digraphs of a size, by seed, spread over an executor, with a log in JSON.

The groups are semidirect products of cyclic groups. The log holds the seeds that are done and the specs they gave.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chorale.synth.errors import InvalidInput
from chorale.synth.executor.base import Executor, Progress
from chorale.synth.finder.base_candidates import traits_of
from chorale.synth.finder.bfb_score import MAX_DEGREE, bfb_score
from chorale.synth.finder.candidate import TopologyCandidate, Traits, frontier, least_steps
from chorale.synth.finder.constructions import divisors
from chorale.synth.finder.find import FinderQuery
from chorale.synth.kernels import native
from chorale.synth.topology.families.directed import SemidirectProduct
from chorale.synth.topology.spec import parse_topology


def semidirect_groups(order: int) -> Iterator[SemidirectProduct]:
    """Yield Z_m x|_r Z_k x Z_l with m k l = `order`, for all factors and all r of order dividing k modulo m.

    Cyclic groups come first. Some are isomorphic; a search loses time by that, not answers.
    """
    yield SemidirectProduct(order, 1, 1)
    for m in divisors(order):
        for k in divisors(order // m):
            if k == 1 or m == 1:
                continue
            for r in range(1, m):
                group = SemidirectProduct(m, k, r, order // (m * k))
                if group.is_group:
                    yield group


@lru_cache(maxsize=8)
def multiplication_table(group: SemidirectProduct) -> NDArray[np.int32]:
    """Return int32[order, order]: entry [g, x] is x times g. O(order^2) time and memory."""
    elements = np.arange(group.order)
    rows = [group.product(elements, np.full_like(elements, generator)) for generator in elements]
    return np.array(rows, dtype=np.int32)


MAX_SEARCH_NODES = 2**11
_EXTRA_STEPS = 6
_SURELY = 18
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
        """Generator sets that one seed tries: no more than it takes to see every one of them, as good as surely.

        A set is drawn with a probability of at least degree! / (nodes - 1)^degree. After log(sets) + `_SURELY` times
        the inverse of that, one of all `sets` is still missing with a probability below e^-`_SURELY`.
        """
        inverse: int = -(-((self.nodes - 1) ** self.degree) // math.factorial(self.degree))
        sufficient = inverse * (inverse.bit_length() + _SURELY)
        return min(sufficient, max(64, _WORK // (self.nodes * self.degree)))


def searches_for(query: FinderQuery) -> list[CayleySearch]:
    """Return the searches useful for a query: graphs of its size, and those whose line graphs are of its size."""
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
    """Return the Pareto-efficient Cayley digraphs among the results of all `seeds` and `previous` ones.

    A task is one seed, tried on one group: seed s takes group s modulo their number. So a search can be stopped and
    continued with the seeds that are missing; the union of seeds alone decides the result, not where or when they ran.
    Of equal cost, the first spec by `tie_break` stays. All are scored at the identity only, which is exact: Cayley
    digraphs are vertex-transitive.
    """
    tasks = [(search, seed) for seed in sorted(set(seeds))]
    candidates_of_all = list(previous)
    for candidates in executor.map(_try_seed, tasks, None, progress):
        candidates_of_all += candidates
    return tuple(group[0] for group in frontier(candidates_of_all))


LOAD_UNIT = 840
"""Loads are counted in parts of 840 = lcm(1, …, 8), so that all of them are whole."""

NO_LOAD = np.iinfo(np.int64).max


def _try_seed(_shared: None, task: tuple[CayleySearch, int]) -> list[TopologyCandidate]:
    search, seed = task
    groups = _groups(search.nodes)
    group = groups[seed % len(groups)]
    most_steps = least_steps(search.nodes, search.degree, search.bidirectional) + _EXTRA_STEPS
    table = multiplication_table(group)
    kind = (search.degree, search.bidirectional, most_steps)
    loads, generators = native.best_generators(table, *kind, search.trials, seed)
    return [
        _candidate(search, group, sorted(map(int, generators[steps])), steps, int(loads[steps]))
        for steps in np.flatnonzero(loads != NO_LOAD).tolist()
    ]


@cache
def _groups(order: int) -> tuple[SemidirectProduct, ...]:
    return tuple(semidirect_groups(order))


def _candidate(
    search: CayleySearch, group: SemidirectProduct, generators: list[int], steps: int, load: int
) -> TopologyCandidate:
    factor = Fraction(search.degree * load, search.nodes * LOAD_UNIT)
    spec = f"cayley:{group.m}.{group.k}.{group.r}.{group.l},{','.join(map(str, generators))}"
    return TopologyCandidate(
        spec=spec,
        method="bfb",
        nodes=search.nodes,
        degree=search.degree,
        steps=steps,
        bandwidth_factor=factor,
        exact=True,
        traits=Traits(
            simple=True,
            self_loops=False,
            bidirectional=search.bidirectional,
            reverse_symmetric=search.bidirectional,
        ),
        least_steps=steps,
        least_factor=factor,
        origin=(spec,),
    )


FORMAT = "chorale-base-search/1"
_WAY_OUT = "start a new file"
_MAX_SEEDS = 10**6


@dataclass(frozen=True, slots=True)
class SearchProgress:
    """Seeds 0 to `seeds` - 1 are done; `frontier` holds the best of them."""

    seeds: int
    frontier: tuple[TopologyCandidate, ...]


def write_log(log: Mapping[CayleySearch, SearchProgress]) -> bytes:
    """Return the JSON that `read_log` reads, in order of size."""
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
    """Return what `write_log` wrote; every spec is built and scored again, so that the file need not be trusted.

    Raises InvalidInput naming the file for anything else.
    """
    try:
        document = json.loads(content)
        if document["format"] != FORMAT:
            raise ValueError("another format")
        return dict(_entry(entry) for entry in document["hunts"])
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        rule = f"{file_name} must be a record of a search ({FORMAT})"
        raise InvalidInput(rule, str(error) or "something else", _WAY_OUT) from None


def _entry(entry: Mapping[str, Any]) -> tuple[CayleySearch, SearchProgress]:
    nodes, degree, seeds = entry["nodes"], entry["degree"], entry["seeds"]
    if any(type(value) is not int for value in (nodes, degree, seeds)) or not 0 <= seeds <= _MAX_SEEDS:
        raise ValueError("counts that are not whole numbers in range")
    search = CayleySearch(nodes, degree, bool(entry["bidirectional"]))
    return search, SearchProgress(seeds, _candidates(search, entry["found"]))


def _candidates(search: CayleySearch, specs: Sequence[Any]) -> tuple[TopologyCandidate, ...]:
    return tuple(_candidate_search_log(search, str(spec)) for spec in specs)


def _candidate_search_log(search: CayleySearch, spec: str) -> TopologyCandidate:
    if not spec.startswith("cayley:"):
        raise ValueError(f"a base that is not a Cayley digraph: {spec[:60]}")
    topology = parse_topology(spec)
    traits = traits_of(topology)
    if (topology.compute_count, topology.degree) != (search.nodes, search.degree):
        raise ValueError(f"a base of another size: {spec[:60]}")
    if search.bidirectional and not traits.bidirectional:
        raise ValueError(f"a base that is not bidirectional: {spec[:60]}")
    score = bfb_score(topology)
    return TopologyCandidate(
        spec=spec,
        method="bfb",
        nodes=search.nodes,
        degree=search.degree,
        steps=score.steps,
        bandwidth_factor=score.bandwidth_factor,
        exact=True,
        traits=traits,
        least_steps=score.steps,
        least_factor=score.bandwidth_factor,
        origin=(spec,),
    )
