"""Bucket on all tori up to 64 nodes."""

from fractions import Fraction

import pytest

from chorale.synth.collective import ALLGATHER, ALLREDUCE, REDUCE_SCATTER, Collective, CollectiveName
from chorale.synth.errors import InvalidInput
from chorale.synth.methods.grid.algorithms import bucket, ring_line, traditional_torus
from chorale.synth.methods.grid.lines import grid_shape
from chorale.synth.topology.spec import parse_topology
from tests.patterns import verified_with_traffic
from tests.shapes import node_counts, torus_specs


@pytest.mark.parametrize("nodes", node_counts(2))
def test_bucket_on_all_tori(nodes):
    for spec in torus_specs(nodes):
        topology = parse_topology(spec)
        shape = grid_shape(topology)
        together = verified_with_traffic(bucket(topology, ALLREDUCE))
        assert together.schedule.steps == 2 * len(shape) * (max(shape) - 1)
        at_once = verified_with_traffic(traditional_torus(topology, ALLREDUCE))
        assert at_once.schedule.steps == 2 * sum(size - 1 for size in shape)
        if len(set(shape)) == 1 and min(shape) > 2:
            optimum = 2 * Fraction(nodes - 1, nodes)
            assert together.cost.bandwidth_factor == at_once.cost.bandwidth_factor == optimum
        if len(shape) == 2 and min(shape) > 2:
            assert together.cost.time_per_byte <= at_once.cost.time_per_byte


@pytest.mark.parametrize("collective", [ALLGATHER, REDUCE_SCATTER], ids=str)
@pytest.mark.parametrize("nodes", [2, 3, 4, 6, 8, 9, 12, 15, 16, 27])
def test_other_collectives(nodes, collective):
    for spec in torus_specs(nodes):
        verified_with_traffic(bucket(parse_topology(spec), collective))
        verified_with_traffic(bucket(parse_topology(spec), collective, synchronised=False, all_ports=False))


@pytest.mark.parametrize("spec", ["mesh:3x4", "hyperx:4x4", "hxmesh:2,2x2", "without(torus:4x4;link=0-1)"])
def test_other_networks(spec):
    verified_with_traffic(bucket(parse_topology(spec), ALLREDUCE))


def test_blocks_arrive_at_their_positions():
    line = ring_line(5)
    assert len(line.steps) == 4
    last = line.steps[-1]
    assert (last.dst == last.block).all()


@pytest.mark.parametrize(("spec", "factor"), [("torus:4x8", 2), ("torus:3x9", 2), ("torus:4x16", 4)])
def test_short_dimensions_send_in_pieces_so_that_they_hold_nobody_up(spec, factor):
    """Every step takes as long as a block of the longest dimension, or of what is left after a shorter one."""
    topology = parse_topology(spec)
    short, long = grid_shape(topology)
    traffic = bucket(topology, REDUCE_SCATTER).traffic()
    amounts = [Fraction(int(traffic.link_amounts(step).max()), traffic.denominator) for step in traffic.steps]
    assert (long - 1) // (short - 1) >= factor
    assert max(amounts) == Fraction(1, 4 * long)
    assert sum(amounts) == Fraction(long - 1, 4 * long) * (1 + Fraction(1, short))


def test_waiting_keeps_links_unshared():
    """Figure 10: on 2x4 the ring that is through early meets the other one unless it waits."""
    topology = parse_topology("torus:3x6")
    for synchronised, shared in ((True, False), (False, True)):
        traffic = bucket(topology, ALLREDUCE, synchronised).traffic()
        ports = bucket(topology, ALLREDUCE, synchronised).subcollectives
        busiest = max(
            len(messages)
            for step in range(len(traffic.steps))
            for messages in _senders_by_receiver(ports, step).values()
        )
        assert (busiest > 1) == shared


def _senders_by_receiver(ports, step) -> dict:
    """Return the ports that send between each pair of neighbours in `step`."""
    users: dict = {}
    for number, port in enumerate(ports):
        src, dst, _ = port[step].messages()
        for pair in zip(src.tolist(), dst.tolist(), strict=True):
            users.setdefault(pair, set()).add(number)
    return users


def test_a_broadcast_is_refused():
    with pytest.raises(InvalidInput, match="bucket makes allgather"):
        bucket(parse_topology("torus:4x4"), Collective(CollectiveName.BROADCAST, 0))
