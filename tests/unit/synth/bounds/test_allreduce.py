"""Bounds on allreduce against the theorems, one by one, and against what is reached."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from chorale.synth.bounds.certificate import check_certificate
from chorale.synth.bounds.lower_bound import (
    allreduce_bounds,
    lower_bound,
    reduce_scatter_allgather_time,
    single_rank_cuts,
)
from chorale.synth.bounds.optimum import search_for
from chorale.synth.collective import ALLGATHER, ALLREDUCE
from chorale.synth.topology.links import Link, Links
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology
from tests.random_fabrics import random_fabric
from tests.reference.all_cuts import AllCuts


def _crossing(topology: Topology) -> Fraction:
    """Theorem 16: the vector crosses every cut. In Eulerian networks it may be taken from any one rank."""
    return AllCuts(topology, tuple(int(rank == 0) for rank in range(topology.compute_count))).optimum()


def _busiest_rank(topology: Topology) -> Fraction:
    """Corollary 18: some rank, with any switches around it, receives 2 (N - 1) / N."""
    units, scale = topology.links.integer_bandwidths()
    ranks = topology.compute_count
    cuts = AllCuts(topology, (1,) * ranks)
    bandwidth = cuts.entering(units.tolist())
    alone = [min(bandwidth[cuts.masks & (1 << ranks) - 1 == 1 << rank].tolist()) for rank in range(ranks)]
    return Fraction(2 * (ranks - 1), ranks) / Fraction(max(alone), scale)


@pytest.mark.parametrize("first", range(0, 300, 50))
def test_bounds_hold_and_include_those_of_the_theorems(first: int) -> None:
    for seed in range(first, first + 50):
        topology = random_fabric(seed)
        reached = reduce_scatter_allgather_time(topology)
        for bound in allreduce_bounds(topology):
            assert bound.value <= reached, seed
            assert check_certificate(topology, ALLREDUCE, bound.to_json(topology)) == bound.value
        best = lower_bound(topology, ALLREDUCE).value
        assert best >= max(_crossing(topology), _busiest_rank(topology)), seed


@pytest.mark.parametrize(
    "spec",
    ["a100:2", "a100:4", "mi250:1", "mi250:2", "h100:2", "mi300x:2", "fattree:4", "dragonfly:2,1,1", "torus:3x4",
     "kautz:2,3", "railclos:2,4,25,2", "switch:5,100"],
)  # fmt: skip
def test_groups_prove_reduce_scatter_with_allgather_optimal(spec: str) -> None:
    topology = parse_topology(spec)
    both = reduce_scatter_allgather_time(topology)
    assert lower_bound(topology, ALLREDUCE, both).value == lower_bound(topology, ALLREDUCE).value == both


def test_what_goes_out_counts_on_one_way_networks() -> None:
    """One link of bandwidth 1 leaves rank 0, which all of the vector must take."""
    links = [Link(0, 1), Link(1, 0), Link(1, 2), Link(2, 0, Fraction(3))]
    topology = Topology("one way", ("0", "1", "2"), 3, Links.build(links))
    assert not topology.is_eulerian
    kinds = {bound.kind for bound in allreduce_bounds(topology)}
    assert kinds == {"received", "sent", "into", "out-of"}
    assert lower_bound(topology, ALLREDUCE).value == 1


def test_cuts_around_single_ranks_are_moved_by_symmetries() -> None:
    """Each rank has a switch of its own that is narrower than the rank; the last two are narrower still."""
    ranks = 8
    width = [Fraction(1)] * 6 + [Fraction(1, 2)] * 2
    ends = [(rank, ranks + rank, Fraction(4)) for rank in range(ranks)]
    ends += [(ranks + rank, 2 * ranks, width[rank]) for rank in range(ranks)]
    links = [Link(*pair, bandwidth) for one, two, bandwidth in ends for pair in ((one, two), (two, one))]
    names = tuple(f"node {node}" for node in range(2 * ranks + 1))
    alone = Topology("leaves", names, ranks, Links.build(links))
    turned = np.array([1, 2, 3, 4, 5, 0, 7, 6])
    symmetric = replace(alone, automorphisms=(np.concatenate([turned, ranks + turned, [2 * ranks]]).astype(np.int32),))
    cuts = [
        [cut.tolist() for cut in single_rank_cuts(search_for(topology, ALLGATHER))] for topology in (alone, symmetric)
    ]
    assert cuts[0] == cuts[1] == [[rank, ranks + rank] for rank in range(ranks)]
