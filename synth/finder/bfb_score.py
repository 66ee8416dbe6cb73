"""Computes BFB's exact cost on a topology (steps and bandwidth factor) without making the schedule.

For networks with a small diameter and degree, kernels represent sets of nodes as bits. A search needs thousands of
generalized Kautz graphs, so the cost on these graphs is computed from their formula without building them.
"""

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.errors import InvalidInput
from chorale.synth.executor.base import Executor, Progress
from chorale.synth.kernels import native
from chorale.synth.methods.bfb.plan import MAX_HOPS, Problems, network_of, problems_of
from chorale.synth.topology.automorphism import checked_orbits
from chorale.synth.topology.distance import distances_to
from chorale.synth.topology.grammar import FamilyCall, parse_spec
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology

MAX_DEGREE = 8
"""Largest degree that the kernels accept, because they try all 2^degree sets of a node's incoming links."""
_LOW_DIAMETER = 24
_FEW = 8
"""Solving one node per orbit is worthwhile if at most one in `_FEW` nodes has to be solved."""
MAX_NODES_WITHOUT_SYMMETRIES = 2**14
"""Size limit for networks without symmetries, which take quadratic time because all their nodes are solved."""


class BfbScore(NamedTuple):
    """Cost of the BFB allgather: number of steps, and bandwidth time T_B in units of M / B."""

    steps: int
    bandwidth_factor: Fraction


def bfb_score(topology: Topology) -> BfbScore:
    """Return the exact cost of the BFB allgather, which `bfb_allgather` reaches if its number of chunks is not limited.

    T_B = (degree / N) * sum over steps of the largest link load in shards. If the network has known symmetries (which
    are checked), only one node per orbit is solved. Otherwise, networks of low diameter and degree are solved with bit
    sets of nodes, and all other networks with the general BFB kernel.

    Raises:
        InvalidInput: unless the network is regular and direct-connect with identical links. Above 2^14 nodes, it must
            also have known symmetries.
    """
    degree, nodes = topology.degree, topology.node_count
    if degree is None or topology.node_bandwidth is None:
        rule = "only regular networks of equal links have a bandwidth factor, not {}"
        raise InvalidInput(rule, topology.spec, "choose a direct-connect topology")
    chosen = np.unique(checked_orbits(topology), return_index=True)[1].astype(np.int64)  # one node per orbit
    if len(chosen) * (degree + 1) * _FEW <= nodes:
        problems = _problems_of_some(topology, chosen)
        return _score(
            degree, nodes, *native.least_loads(0, len(chosen), problems, int(problems.rows[: len(chosen)].max()))[:2]
        )
    if nodes > MAX_NODES_WITHOUT_SYMMETRIES:
        rule = f"a network of more than {MAX_NODES_WITHOUT_SYMMETRIES} nodes needs symmetries for a score of BFB"
        raise InvalidInput(rule, topology.spec, "use fewer nodes, or a network with symmetries")
    if degree <= MAX_DEGREE:
        tails = topology.links.src.reshape(-1, degree).copy()
        loads = native.loads_of_low_diameter(tails, chosen, _LOW_DIAMETER)
        if len(loads[0]):
            return _score(degree, nodes, *loads)
    return score_of_all_nodes(topology)


def score_of_all_nodes(topology: Topology) -> BfbScore:
    """Return the same as `bfb_score`, computed for every node by the slower scheduling kernel, which shares no code.

    The network must be regular and direct-connect with identical links.
    """
    degree, nodes = int(topology.degree or 0), topology.node_count
    return _score(degree, nodes, *native.least_loads(0, nodes, *problems_of(network_of(topology)))[:2])


def _score(degree: int, nodes: int, top: NDArray[np.int64], bottom: NDArray[np.int64]) -> BfbScore:
    """Return the score whose largest loads per step are the fractions `top` / `bottom`, in shards."""
    loads = map(Fraction, top.tolist(), bottom.tolist())
    return BfbScore(len(top), Fraction(degree, nodes) * sum(loads))


def _problems_of_some(topology: Topology, chosen: NDArray[np.int64]) -> Problems:
    """Return the BFB problems of the `chosen` nodes, renumbered from 0. Their in-neighbours follow, without links."""
    network = network_of(topology, every_pair=False)
    ranges = [np.arange(network.offsets[node], network.offsets[node + 1]) for node in chosen]
    links = np.concatenate(ranges)
    targets, row_of_tail = np.unique(network.tails[links], return_inverse=True)
    hops = distances_to(topology, np.concatenate([chosen, targets]))
    if int(hops.max()) >= MAX_HOPS:
        raise InvalidInput(f"scores of BFB count up to {MAX_HOPS} hops", int(hops.max()), "use fewer nodes")
    offsets = np.full(network.nodes + 1, len(links), dtype=np.int64)
    offsets[: len(chosen)] = np.cumsum([0, *map(len, ranges[:-1])])
    tails = (row_of_tail + len(chosen)).astype(np.int32)
    capacities, delays = network.capacities[links].copy(), network.delays[links].copy()
    return Problems(offsets, tails, capacities, delays, network.grain, hops.astype(np.uint16), network.words)


def bfb_score_of(spec: str) -> BfbScore:
    """Return the exact BFB score of the topology `spec`.

    genkautz:d,n with d up to `MAX_DEGREE` is not built: the score follows from the formula of its links (x to -d x - a
    modulo n for a = 1, …, d), in time about proportional to the number of nodes.
    """
    tree = parse_spec(spec)
    if isinstance(tree, FamilyCall) and tree.name == "genkautz":
        degree, nodes = map(int, tree.text.split(","))
        if degree <= MAX_DEGREE:
            return _score(degree, nodes, *native.kautz_loads(degree, nodes, math.gcd(degree, nodes)))
    return bfb_score(parse_topology(spec))


_MOST_TASKS = 64


class ScoreCache(dict[str, BfbScore]):
    """Cache that maps specs of topologies to their BFB scores."""

    def of(self, spec: str) -> BfbScore:
        """Return the score of the topology `spec`. If it is not cached, it is computed in this process."""
        if spec not in self:
            self[spec] = bfb_score_of(spec)
        return self[spec]

    def compute(self, specs: Iterable[str], executor: Executor, progress: Progress | None = None) -> None:
        """Compute the scores of those `specs` that are not cached, in up to 64 tasks on `executor`."""
        missing = [spec for spec in dict.fromkeys(specs) if spec not in self]
        batches = [missing[first::_MOST_TASKS] for first in range(min(len(missing), _MOST_TASKS))]
        for batch, scores in zip(batches, executor.map(_score_all, batches, None, progress), strict=True):
            self |= zip(batch, scores, strict=True)


def _score_all(_shared: None, specs: Sequence[str]) -> list[BfbScore]:
    return [bfb_score_of(spec) for spec in specs]
