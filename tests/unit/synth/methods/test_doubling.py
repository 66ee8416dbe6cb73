"""Recursive doubling and Rabenseifner's algorithm on all tori up to 64 nodes, against definitions and exact sums."""

from fractions import Fraction
from math import log2

import numpy as np
import pytest

from chorale.synth.collective import ALLGATHER, ALLREDUCE, REDUCE_SCATTER, Collective, CollectiveName
from chorale.synth.errors import InvalidInput
from chorale.synth.methods.grid.algorithms import doubling_peers, halving_line, rabenseifner, recursive_doubling
from chorale.synth.methods.grid.lines import grid_shape
from chorale.synth.topology.spec import parse_topology
from tests.patterns import verified_with_traffic
from tests.shapes import node_counts, torus_specs

OTHERS = [ALLGATHER, REDUCE_SCATTER, Collective(CollectiveName.BROADCAST, 1), Collective(CollectiveName.REDUCE, 1)]


def rounds_and_folds(topology) -> tuple[int, int]:
    """Return (steps of the largest powers of two, dimensions that are none)."""
    shape = grid_shape(topology)
    return sum(size.bit_length() - 1 for size in shape), sum(size.bit_count() > 1 for size in shape)


def sent_by_rank(schedule) -> np.ndarray:
    """Return how many chunks each rank sends over the whole schedule."""
    sent = np.zeros(schedule.topology.compute_count, dtype=np.int64)
    np.add.at(sent, schedule.src, schedule.transfers.hi.astype(np.int64) - schedule.transfers.lo)
    return sent


@pytest.mark.parametrize("nodes", node_counts(2))
def test_halving_and_doubling_on_all_tori(nodes):
    for spec in torus_specs(nodes):
        topology = parse_topology(spec)
        rounds, folds = rounds_and_folds(topology)
        for all_ports in (False, True):
            schedule = verified_with_traffic(rabenseifner(topology, ALLREDUCE, all_ports)).schedule
            assert schedule.steps == 2 * (rounds + folds)
            if not folds:
                assert set((sent_by_rank(schedule) / schedule.chunks_per_shard).tolist()) == {2 * (nodes - 1)}


@pytest.mark.parametrize("nodes", node_counts(2))
def test_doubling_on_all_tori(nodes):
    for spec in torus_specs(nodes):
        topology = parse_topology(spec)
        rounds, folds = rounds_and_folds(topology)
        for all_ports in (False, True):
            schedule = verified_with_traffic(recursive_doubling(topology, ALLREDUCE, all_ports)).schedule
            assert schedule.steps == rounds + 2 * folds
            if not folds:
                assert set((sent_by_rank(schedule) / schedule.chunks_per_shard).tolist()) == {nodes * rounds}


@pytest.mark.parametrize("collective", OTHERS, ids=str)
@pytest.mark.parametrize("nodes", [2, 3, 4, 6, 7, 8, 9, 12, 15, 16, 20])
def test_other_collectives(nodes, collective):
    for spec in torus_specs(nodes):
        topology = parse_topology(spec)
        rounds, folds = rounds_and_folds(topology)
        for all_ports in (False, True):
            verified = verified_with_traffic(rabenseifner(topology, collective, all_ports))
            assert verified.schedule.steps <= rounds + 2 * folds


@pytest.mark.parametrize("spec", ["mesh:3x4", "hypercube:4", "complete:6", "hxmesh:2,2x2", "a100:2"])
@pytest.mark.parametrize("method", [rabenseifner, recursive_doubling])
def test_other_networks(spec, method):
    verified_with_traffic(method(parse_topology(spec), ALLREDUCE))
    verified_with_traffic(method(parse_topology(spec), Collective(CollectiveName.REDUCE, 3)))


def test_peers_are_those_of_exclusive_or():
    assert [peer.tolist() for peer in doubling_peers(4)] == [[1, 0, 3, 2], [2, 3, 0, 1]]


@pytest.mark.parametrize("size", [2, 4, 8, 16, 32])
def test_blocks_share_the_higher_bits_of_the_peer(size):
    """In step s a rank hands on the blocks that agree with its peer in bits 0 to s."""
    for number, step in enumerate(halving_line(size, returns=True).steps):
        for rank in range(size):
            mine = step.src == rank
            peer = rank ^ (1 << number)
            low = (1 << number + 1) - 1
            assert set(step.dst[mine].tolist()) == {peer}
            assert set(step.block[mine].tolist()) == {block for block in range(size) if (block ^ peer) & low == 0}


def test_ranks_beyond_the_power_of_two_are_folded():
    keeps, returns = halving_line(6, returns=False), halving_line(6, returns=True)
    assert (len(keeps.steps), len(returns.steps)) == (3, 4)
    first = keeps.steps[0]
    assert set(zip(first.src.tolist(), first.dst.tolist(), strict=True)) == {(4, 0), (5, 1)}
    assert set(first.block[first.src == 4].tolist()) == {0, 1, 2, 3, 4, 5}
    assert set(returns.steps[0].block[returns.steps[0].src == 4].tolist()) == {0, 1, 2, 3, 5}


@pytest.mark.parametrize(
    ("spec", "dimensions", "side"), [("torus:8x8", 2, 8), ("torus:16x16", 2, 16), ("torus:8x8x8", 3, 8)]
)
def test_congestion_is_the_sum_of_distances(spec, dimensions, side):
    """Sections 2.3.2 and 2.3.3: the busiest link carries as many messages as they are hops long.

    The last step of a dimension, of half its length, goes both ways: a quarter of the side.
    """
    topology = parse_topology(spec)
    links = [min(1 << step // dimensions, side // 4) for step in range(int(log2(topology.compute_count)))]
    whole, halves = recursive_doubling(topology, ALLREDUCE).traffic(), rabenseifner(topology, ALLREDUCE).traffic()
    times = [
        sum(Fraction(int(traffic.link_amounts(step).max()), traffic.denominator) for step in traffic.steps)
        for traffic in (whole, halves)
    ]
    assert times == [sum(links), 2 * sum(Fraction(hops, 2 ** (step + 1)) for step, hops in enumerate(links))]


def test_mirrored_doubling_uses_all_ports_and_is_faster():
    topology = parse_topology("torus:8x8")
    plain, mirrored = (verified_with_traffic(rabenseifner(topology, ALLREDUCE, ports)) for ports in (False, True))
    assert mirrored.cost.time_per_byte < plain.cost.time_per_byte / 2
    assert mirrored.cost.steps == plain.cost.steps


def test_doubling_is_no_allgather():
    with pytest.raises(InvalidInput, match="recursive-doubling makes allreduce"):
        recursive_doubling(parse_topology("torus:4"), ALLGATHER)
