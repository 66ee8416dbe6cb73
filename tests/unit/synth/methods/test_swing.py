"""Swing on all tori up to 64 nodes, against the paper's definitions, figures and exact sums."""

from fractions import Fraction
from math import log2

import numpy as np
import pytest

from chorale.synth.collective import ALLGATHER, ALLREDUCE, ALLTOALL, REDUCE_SCATTER, Collective, CollectiveName
from chorale.synth.errors import InvalidInput
from chorale.synth.methods.grid.algorithms import swing, swing_distance, swing_latency, swing_line, swing_peers
from chorale.synth.methods.grid.lines import grid_shape
from chorale.synth.schedule.traffic import traffic_of
from chorale.synth.topology.spec import parse_topology
from chorale.synth.verify.verify import verify
from tests.patterns import verified_with_traffic
from tests.shapes import node_counts, torus_specs

OTHERS = [ALLGATHER, REDUCE_SCATTER, Collective(CollectiveName.BROADCAST, 1), Collective(CollectiveName.REDUCE, 1)]


def line_steps(size: int) -> int:
    """Return how many steps one dimension takes: those of the even number of positions that swing."""
    return (size - size % 2 - 1).bit_length()


def sent_by_each_rank(schedule) -> set[Fraction]:
    """Return what ranks send over the whole schedule, as fractions of the vector (one, if all send the same)."""
    sent = np.zeros(schedule.topology.compute_count, dtype=np.int64)
    np.add.at(sent, schedule.src, schedule.transfers.hi.astype(np.int64) - schedule.transfers.lo)
    return {Fraction(int(amount), schedule.chunks_per_shard * len(sent)) for amount in sent}


@pytest.mark.parametrize("nodes", node_counts(2))
def test_bandwidth_optimal_on_all_tori(nodes):
    for spec in torus_specs(nodes):
        topology = parse_topology(spec)
        steps = sum(line_steps(size) for size in grid_shape(topology))
        for all_ports in (True, False):
            verified = verified_with_traffic(swing(topology, ALLREDUCE, all_ports))
            assert verified.schedule.steps == 2 * steps
            assert sent_by_each_rank(verified.schedule) == {2 * Fraction(nodes - 1, nodes)}  # no byte too many
            assert verified.link_loads.duplicate_deliveries == 0


@pytest.mark.parametrize("nodes", node_counts(2))
def test_latency_optimal_on_all_tori(nodes):
    for spec in torus_specs(nodes):
        topology = parse_topology(spec)
        rounds = sum(size.bit_length() - 1 for size in grid_shape(topology))
        folds = sum(size.bit_count() > 1 for size in grid_shape(topology))
        for all_ports in (True, False):
            verified = verified_with_traffic(swing_latency(topology, ALLREDUCE, all_ports))
            assert verified.schedule.steps == rounds + 2 * folds
            if not folds:
                assert sent_by_each_rank(verified.schedule) == {Fraction(rounds)}


@pytest.mark.parametrize("collective", OTHERS, ids=str)
@pytest.mark.parametrize("nodes", [2, 3, 4, 6, 7, 8, 9, 12, 15, 16, 20])
def test_other_collectives(nodes, collective):
    for spec in torus_specs(nodes):
        topology = parse_topology(spec)
        for all_ports in (True, False):
            verified = verified_with_traffic(swing(topology, collective, all_ports))
            assert verified.schedule.steps <= sum(line_steps(size) for size in grid_shape(topology))


@pytest.mark.parametrize("spec", ["mesh:3x4", "hyperx:4x4", "hypercube:4", "ring:10", "hxmesh:2,2x2", "a100:2"])
@pytest.mark.parametrize("method", [swing, swing_latency])
def test_other_networks(spec, method):
    verified_with_traffic(method(parse_topology(spec), ALLREDUCE))
    verified_with_traffic(method(parse_topology(spec), Collective(CollectiveName.BROADCAST, 3)))


def blocks_by_the_listing(rank: int, step: int, nodes: int, blocks: set[int]) -> set[int]:
    """The paper's get_rs_idxs (figure 3): what `rank` reaches from `step` on."""
    for later in range(step, int(log2(nodes))):
        rho = sum((-2) ** i for i in range(later + 1))
        peer = (rank + rho if rank % 2 == 0 else rank - rho) % nodes
        blocks.add(peer)
        blocks_by_the_listing(peer, later + 1, nodes, blocks)
    return blocks


@pytest.mark.parametrize("nodes", [2, 4, 8, 16, 32])
def test_blocks_are_those_of_the_papers_listing(nodes):
    for number, step in enumerate(swing_line(nodes).steps):
        for rank in range(nodes):
            peer = int(swing_peers(nodes)[number][rank])
            mine = step.src == rank
            assert set(step.dst[mine].tolist()) == {peer}
            assert set(step.block[mine].tolist()) == {peer} | blocks_by_the_listing(peer, number + 1, nodes, set())


def test_distances():
    assert [abs(swing_distance(step)) for step in range(7)] == [1, 1, 3, 5, 11, 21, 43]
    assert [swing_distance(step) for step in range(7)] == [sum((-2) ** i for i in range(s + 1)) for s in range(7)]


def test_the_odd_one_talks_to_three_two_one():
    """Figure 4: the last of seven nodes exchanges with 0, 1, 2, then with 3 and 4, then with 5."""
    groups = [set(step.dst[step.src == 6].tolist()) for step in swing_line(7).steps]
    assert groups == [{0, 1, 2}, {3, 4}, {5}]
    assert [set(step.src[step.dst == 6].tolist()) for step in swing_line(7).steps] == groups


def peers_of_rank_0(spec: str) -> list[set[int]]:
    schedule = swing(parse_topology(spec), REDUCE_SCATTER).schedule()
    mine = schedule.src == 0
    return [set(schedule.dst[mine & (schedule.transfers.step == s)].tolist()) for s in range(schedule.steps)]


def test_first_step_on_4x4_is_that_of_figure_5():
    assert peers_of_rank_0("torus:4x4")[0] == {1, 3, 4, 12}


def test_last_step_on_2x4_uses_the_longer_dimension_only():
    """Figure 6: every rank has reached its column after two steps."""
    steps = peers_of_rank_0("torus:2x4")
    assert steps[0] == {1, 3, 4}
    assert steps[2] <= {1, 3}


@pytest.mark.parametrize("side", [2, 4, 8, 16])
@pytest.mark.parametrize("dimensions", [2, 3])
def test_congestion_on_square_tori_is_the_papers_sum(side, dimensions):
    """Section 4.1: step s sends 2^-(s+1) of a port's vector, over delta(s // D) links each."""
    nodes = side**dimensions
    if nodes > 512 or side == 2:
        return
    topology = parse_topology("torus:" + "x".join([str(side)] * dimensions))
    expected = sum(
        Fraction(abs(swing_distance(step // dimensions)), 2 ** (step + 1)) for step in range(int(log2(nodes)))
    )
    loads = swing(topology, ALLREDUCE).traffic()
    time = sum(int(loads.link_amounts(step).max()) for step in loads.steps)
    assert Fraction(time, loads.denominator) == expected / dimensions


def test_what_the_paper_gives_for_64x64():
    traffic = swing(parse_topology("torus:64x64"), ALLREDUCE).traffic()
    time = Fraction(sum(int(traffic.link_amounts(step).max()) for step in traffic.steps), traffic.denominator)
    assert float(2 * time) == pytest.approx(1.19, abs=0.01)  # table 2: congestion deficiency, optimum n / D


def test_schedules_that_are_too_large_are_refused_and_their_traffic_is_not():
    pattern = swing_latency(parse_topology("torus:64x64"), ALLREDUCE)
    with pytest.raises(InvalidInput, match="at most 134217728 transfers"):
        pattern.schedule()
    assert len(pattern.traffic().steps) == 12


def test_a_line_that_is_too_long_is_refused():
    with pytest.raises(InvalidInput, match="at most 4096 positions"):
        swing(parse_topology("ring:5000"), ALLREDUCE)


@pytest.mark.parametrize("chunks", [1, 3, 7])
def test_other_numbers_of_chunks(chunks):
    verified = verify(swing(parse_topology("torus:2x6"), ALLREDUCE).schedule(chunks))
    assert verified.schedule.chunks_per_shard == chunks
    assert traffic_of(verified.schedule).denominator == 12 * chunks


def test_no_chunks_and_other_collectives_are_refused():
    topology = parse_topology("torus:4")
    with pytest.raises(InvalidInput, match="at least 1"):
        swing(topology, ALLREDUCE).schedule(0)
    with pytest.raises(InvalidInput, match="swing makes allgather"):
        swing(topology, ALLTOALL)
    with pytest.raises(InvalidInput, match="swing-latency makes allreduce"):
        swing_latency(topology, ALLGATHER)
