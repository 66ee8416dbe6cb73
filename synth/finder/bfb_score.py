"""The exact cost of BFB on a topology, steps and bandwidth factor, without making the schedule.

Networks of low diameter and degree have kernels that keep sets of nodes as bits. Generalized Kautz graphs, of which a
search needs thousands, are scored from their arithmetic without being built. Scores are computed once each, here or by
an executor.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from chorale.synth.errors import InvalidInput
from chorale.synth.executor.base import Executor, Progress
from chorale.synth.kernels import native
from chorale.synth.methods.bfb.plan import MAX_HOPS, BfbNetwork, Problems, network_of, problems_of, steps_of
from chorale.synth.topology.automorphism import checked_orbits
from chorale.synth.topology.distance import distances_to
from chorale.synth.topology.grammar import FamilyCall, parse_spec
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology

Words = NDArray[np.uint64]

MAX_DEGREE = 8
"""Every set of in-links is looked at: 2^degree of them."""


_LOW_DIAMETER = 24
_FEW = 8
"""Representatives pay off if their searches are at most one in so many of all."""


MAX_NODES_WITHOUT_SYMMETRIES = 2**14
"""Up to so many nodes a network is scored at every node; that takes time in the square of their number."""


@dataclass(frozen=True, slots=True)
class BfbScore:
    """Steps of the BFB allgather, and T_B in M / B."""

    steps: int
    bandwidth_factor: Fraction


def bfb_score(topology: Topology) -> BfbScore:
    """Return the exact cost of the BFB allgather, that of `bfb_allgather` without a limit on chunks.

    For a regular direct-connect topology of unit links: T_B = (degree / N) * sum over steps of the largest load. Nodes
    that known symmetries (each checked) take to one another are solved once; else low diameters and degrees take
    the kernel on bits, all others that of BFB. Raises InvalidInput for anything else than such a topology, and for a
    large one without enough symmetries.
    """
    degree = topology.degree
    if degree is None or topology.node_bandwidth is None:
        rule = "a bandwidth factor must be asked of a regular network of equal links"
        raise InvalidInput(rule, topology.spec, "choose a direct-connect topology")
    loads = _loads(topology, degree)
    return BfbScore(len(loads), Fraction(degree, topology.node_count) * sum(loads))


def _loads(topology: Topology, degree: int) -> list[Fraction]:
    representatives = _representatives(topology)
    if len(representatives) * (degree + 1) * _FEW <= topology.node_count:
        return _loads_of(topology, representatives)
    if topology.node_count > MAX_NODES_WITHOUT_SYMMETRIES:
        rule = f"a network of more than {MAX_NODES_WITHOUT_SYMMETRIES} nodes needs symmetries for a score of BFB"
        raise InvalidInput(rule, topology.spec, "use fewer nodes, or a network with symmetries")
    if degree <= MAX_DEGREE:
        tails = topology.links.src.reshape(-1, degree).copy()
        loads = low_diameter_loads(tails, representatives)
        if loads:
            return loads
    network = network_of(topology)
    problems = problems_of(network)
    top, bottom, _, _ = native.least_loads(0, network.nodes, problems, steps_of(network))
    return _fractions(top, bottom)


def low_diameter_loads(tails: NDArray[np.int32], chosen: NDArray[np.int64]) -> list[Fraction]:
    """Return the load of every step from the tails of in-links, rows by node; empty if the diameter is not low."""
    return _fractions(*native.loads_of_low_diameter(tails, chosen, _LOW_DIAMETER))


def _representatives(topology: Topology) -> NDArray[np.int64]:
    """Return one node of every orbit of the known symmetries."""
    return np.unique(checked_orbits(topology), return_index=True)[1].astype(np.int64)


def _loads_of(topology: Topology, chosen: NDArray[np.int64]) -> list[Fraction]:
    """Return the largest loads over the `chosen` nodes, by the same kernel with rows for them and their tails only."""
    network = network_of(topology, every_pair=False)
    problems = _problems_of_some(topology, network, chosen)
    steps = int(problems.rows[: len(chosen)].max())
    top, bottom, _, _ = native.least_loads(0, len(chosen), problems, steps)
    return _fractions(top, bottom)


def _problems_of_some(topology: Topology, network: BfbNetwork, chosen: NDArray[np.int64]) -> Problems:
    """Return the problems with the chosen nodes renamed 0, 1, …; nodes beyond them have no links."""
    ranges = [np.arange(network.offsets[node], network.offsets[node + 1]) for node in chosen]
    links = np.concatenate(ranges)
    targets, row_of_tail = np.unique(network.tails[links], return_inverse=True)
    hops = distances_to(topology, np.concatenate([chosen, targets]))
    if int(hops.max()) >= MAX_HOPS:
        raise InvalidInput(f"scores of BFB count up to {MAX_HOPS} hops", int(hops.max()), "use fewer nodes")
    rows = hops.astype(np.uint16)
    offsets = np.full(network.nodes + 1, len(links), dtype=np.int64)
    offsets[: len(chosen)] = np.cumsum([0, *map(len, ranges[:-1])])
    tails = (row_of_tail + len(chosen)).astype(np.int32)
    capacities, delays = network.capacities[links].copy(), network.delays[links].copy()
    return Problems(offsets, tails, capacities, delays, network.grain, rows, network.words)


def _fractions(top: NDArray[np.int64], bottom: NDArray[np.int64]) -> list[Fraction]:
    return [Fraction(int(p), int(q)) for p, q in zip(top, bottom, strict=True)]


def kautz_score(degree: int, nodes: int) -> BfbScore:
    """Return the score of genkautz:degree,nodes: links from x to -degree x - a modulo nodes for a = 1, …, degree.

    Up to `MAX_DEGREE` from the arithmetic of the graph, in time that grows about as its number of nodes.
    """
    if degree > MAX_DEGREE:
        return bfb_score(parse_topology(f"genkautz:{degree},{nodes}"))
    top, bottom = native.kautz_loads(degree, nodes, math.gcd(degree, nodes))
    loads = [Fraction(int(p), int(q)) for p, q in zip(top, bottom, strict=True)]
    return BfbScore(len(loads), Fraction(degree, nodes) * sum(loads))


_MOST_TASKS = 64


class ScoreCache:
    """Remembers every BFB score that was computed, by spec."""

    def __init__(self) -> None:
        self._scores: dict[str, BfbScore] = {}

    def __len__(self) -> int:
        return len(self._scores)

    def has(self, spec: str) -> bool:
        """Whether the score of `spec` is cached."""
        return spec in self._scores

    def of(self, spec: str) -> BfbScore:
        """Return the score of `spec`, computed here unless it is cached."""
        if spec not in self._scores:
            self._scores[spec] = bfb_score_of(spec)
        return self._scores[spec]

    def compute(self, specs: Iterable[str], executor: Executor, progress: Progress | None = None) -> None:
        """Compute the scores of all `specs` that are not cached yet on `executor`.

        A task is one topology, or, of many, every 64th.
        """
        missing = [spec for spec in dict.fromkeys(specs) if spec not in self._scores]
        batches = [missing[first::_MOST_TASKS] for first in range(min(len(missing), _MOST_TASKS))]
        for batch, scores in zip(batches, executor.map(_score_all, batches, None, progress), strict=True):
            self._scores |= zip(batch, scores, strict=True)


def bfb_score_of(spec: str) -> BfbScore:
    """Return the exact BFB score of the topology `spec`."""
    tree = parse_spec(spec)
    if isinstance(tree, FamilyCall) and tree.name == "genkautz":
        degree, nodes = map(int, tree.text.split(","))
        return kautz_score(degree, nodes)
    return bfb_score(parse_topology(spec))


def _score_all(_shared: None, specs: Sequence[str]) -> list[BfbScore]:
    return [bfb_score_of(spec) for spec in specs]
