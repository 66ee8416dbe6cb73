"""Rings: cycles are cycles, costs are what papers and textbooks say, traffic is that of the schedules."""

from fractions import Fraction
from itertools import pairwise
from math import gcd

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.collective import ALLGATHER, ALLREDUCE, REDUCE_SCATTER
from chorale.synth.errors import InvalidInput
from chorale.synth.methods.rings import (
    bfb_ring,
    box_ring,
    count_boxes,
    disjoint_cycles,
    hamiltonian_cycle,
    hamiltonian_ring,
    ring,
)
from chorale.synth.simulation.simulate import NetworkModel, congestion_of
from chorale.synth.topology.links import Link, Links
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology
from tests.patterns import verified_with_traffic
from tests.reference.replays import violations
from tests.strategies import networks
from tests.synthesis import synthesized


def is_cycle(topology, order) -> bool:
    pairs = set(zip(topology.links.src.tolist(), topology.links.dst.tolist(), strict=True))
    hops = zip(order.tolist(), [*order[1:].tolist(), int(order[0])], strict=True)
    return sorted(order.tolist()) == list(range(topology.compute_count)) and all(hop in pairs for hop in hops)


@pytest.mark.parametrize("spec", ["hypercube:8", "torus:2x4", "torus:3x4x5", "torus:50x50", "bipartite:4", "mesh:4x5"])
def test_cycles_are_found_where_they_exist(spec):
    topology = parse_topology(spec)
    order = hamiltonian_cycle(topology)
    assert order is not None
    assert is_cycle(topology, order)


def test_a_bipartite_graph_of_odd_size_has_no_cycle():
    assert hamiltonian_cycle(parse_topology("mesh:3x3")) is None


@given(networks(2, 9), st.sampled_from([ALLGATHER, REDUCE_SCATTER, ALLREDUCE]))
def test_rings_are_right_on_any_network(topology, collective):
    order = hamiltonian_cycle(topology)
    assert order is None or is_cycle(topology, order)
    for method in ("ring", "biring"):
        verified = synthesized(method, topology, collective)
        assert violations(verified.schedule) == []
        assert verified.schedule.steps == (2 if collective == ALLREDUCE else 1) * (topology.compute_count - 1)
        assert verified_with_traffic(ring(topology, collective, method == "biring")).cost == verified.cost


@pytest.mark.parametrize("method", ["ring", "biring"])
def test_ranks_in_a_ring_that_also_share_a_switch(method):
    """A table of all links as routes would have some that end at the switch."""
    wires = [(0, 1), (1, 2), (2, 0), *((rank, 3) for rank in range(3))]
    links = Links.build(Link(*ends, Fraction(1)) for wire in wires for ends in (wire, wire[::-1]))
    topology = Topology("ring beside a switch", tuple("0123"), 3, links)
    verified = synthesized(method, topology, ALLREDUCE)
    assert not verified.schedule.is_in_network
    assert not ring(topology, ALLREDUCE, method == "biring").traffic().is_in_network


@pytest.mark.parametrize(
    ("method", "spec", "factor"),
    [
        ("ring", "ring:8", Fraction(7, 4)),
        ("biring", "ring:8", Fraction(7, 8)),
        ("ring", "hypercube:3", Fraction(21, 8)),
        ("ring", "uniring:3,5", Fraction(4, 5)),
        ("biring", "biring:6,6", Fraction(5, 6)),
    ],
)
def test_costs(method, spec, factor):
    verified = synthesized(method, spec)
    assert verified.cost.bandwidth_factor == factor


def test_chunks_that_do_not_divide_are_spread_as_evenly_as_possible():
    verified = synthesized("biring", "ring:4", ALLGATHER, chunks=5)
    assert verified.cost.bandwidth_factor == 3 * 2 * Fraction(3, 5) / 4


def test_no_chunks_are_refused():
    with pytest.raises(InvalidInput, match="at least 1"):
        ring(parse_topology("ring:4"), ALLGATHER).schedule(0)


def hops(order) -> set[tuple[int, int]]:
    """Return the links of a cycle, both ways."""
    forward = set(pairwise([*order.tolist(), int(order[0])]))
    return forward | {(dst, src) for src, dst in forward}


@pytest.mark.parametrize(("rows", "columns"), [(r, c) for r in range(3, 8) for c in (3, 4, 6, 9, 12)])
def test_cycles_of_tori_exist_just_where_the_papers_condition_holds(rows, columns):
    topology = parse_topology(f"torus:{rows}x{columns}")
    condition = (rows % columns == 0 and gcd(rows, columns - 1) == 1) or (
        columns % rows == 0 and gcd(columns, rows - 1) == 1
    )
    if not condition:
        with pytest.raises(InvalidInput, match="r = c k and gcd"):
            disjoint_cycles(topology)
        return
    first, second = disjoint_cycles(topology)
    links = set(zip(topology.links.src.tolist(), topology.links.dst.tolist(), strict=True))
    for cycle in (first, second):
        assert sorted(cycle.tolist()) == list(range(rows * columns))
        assert hops(cycle) <= links
    assert not hops(first) & hops(second)


@pytest.mark.parametrize("collective", [ALLREDUCE, ALLGATHER, REDUCE_SCATTER], ids=str)
@pytest.mark.parametrize("spec", ["ring:3", "ring:36", "shiftedring:5", "shiftedring:24", "torus:3x3", "torus:8x4"])
def test_rings_along_cycles(spec, collective):
    """ShiftedRing takes 2 (N - 1) steps, ShiftedBFBRing 2 floor(N / 2), both bandwidth-optimal (section A.2)."""
    topology, phases = parse_topology(spec), 2 if collective == ALLREDUCE else 1
    nodes = topology.compute_count
    for method, steps in ((hamiltonian_ring, nodes - 1), (bfb_ring, nodes // 2)):
        verified = verified_with_traffic(method(topology, collective))
        assert verified.schedule.steps == phases * steps
        assert verified.cost.bandwidth_factor == phases * Fraction(nodes - 1, nodes)


@pytest.mark.parametrize("spec", ["uniring:1,5", "hyperx:9x3", "hxmesh:2,2x4"])
def test_rings_on_other_grids_and_one_way(spec):
    verified = verified_with_traffic(hamiltonian_ring(parse_topology(spec), ALLGATHER))
    assert verified.schedule.steps == verified.schedule.topology.compute_count - 1


@pytest.mark.parametrize(
    "spec", ["torus:3x3x3", "torus:2x4", "torus:4x6", "mesh:3x3", "a100:2", "without(torus:4x4;link=0-1)"]
)
def test_other_networks_are_refused(spec):
    with pytest.raises(InvalidInput, match="use biring or bucket"):
        hamiltonian_ring(parse_topology(spec), ALLREDUCE)


@pytest.mark.parametrize(
    ("spec", "boxes"),
    [("h100:4", 4), ("mi250:2", 2), ("a100:1", 1), ("switch:8,10", 1), ("torus:4x4", 1), ("fattree:4", 8)],
)
def test_boxes(spec, boxes):
    assert count_boxes(parse_topology(spec)) == boxes


@pytest.mark.parametrize(
    ("spec", "collective", "nic_gb_per_s"),
    [
        ("a100:3", ALLREDUCE, None),
        ("a100:4", ALLREDUCE, 25),
        ("h100:4", ALLGATHER, 50),
        ("mi250half:4", ALLREDUCE, None),
        ("mi300x:2", REDUCE_SCATTER, None),
    ],
)
def test_all_network_ports_are_busy_all_the_time(spec, collective, nic_gb_per_s):
    """An eighth of the vector crosses each network port, in every step a 1 / N of it."""
    topology, phases = parse_topology(spec), 2 if collective == ALLREDUCE else 1
    pattern, nodes = box_ring(topology, collective), topology.compute_count
    verified = verified_with_traffic(pattern)
    assert verified.schedule.steps == phases * (nodes - 1)
    if nic_gb_per_s:
        assert len(pattern.subcollectives) == 8
        assert verified.cost.time_per_byte == Fraction(phases * (nodes - 1), nodes * 8 * nic_gb_per_s)


def test_thousands_of_ranks():
    """2 (N - 1) steps of one hop and 1 / N of the vector over one port; equal steps are one object."""
    traffic = ring(parse_topology("torus:64x64"), ALLREDUCE).traffic()
    assert (len(traffic.steps), len({id(step) for step in traffic.steps})) == (2 * 4095, 2)
    model = NetworkModel.of(0, "0.1", "0.3", 400)
    ranks = 64 * 64
    seconds = float(congestion_of(traffic).seconds(model, 2**30))
    assert seconds == pytest.approx(2 * (ranks - 1) * (0.4e-6 + 2**30 / ranks * 8 / 400e9))
