"""Rings: cycles are cycles, costs are what the textbook says."""

from fractions import Fraction

import pytest
from hypothesis import given

from chorale.synth.collective import ALLGATHER, ALLREDUCE
from chorale.synth.errors import InvalidInput
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.methods.catalog import synthesize
from chorale.synth.methods.method import Options
from chorale.synth.methods.rings.rings import hamiltonian_cycle, ring_allgather, ring_traffic
from chorale.synth.topology.links import Link, Links
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology
from tests.reference.set_replay import violations
from tests.strategies import networks

SERIAL = SerialExecutor()


def is_cycle(topology, order) -> bool:
    pairs = set(zip(topology.links.src.tolist(), topology.links.dst.tolist(), strict=True))
    hops = zip(order.tolist(), [*order[1:].tolist(), int(order[0])], strict=True)
    return sorted(order.tolist()) == list(range(topology.compute_count)) and all(hop in pairs for hop in hops)


@pytest.mark.parametrize(
    "spec",
    [
        "ring:7",
        "hypercube:3",
        "hypercube:8",
        "torus:2x4",
        "torus:5x5",
        "torus:3x4x5",
        "torus:50x50",
        "bipartite:4",
        "complete:9",
        "mesh:4x5",
    ],
)
def test_cycles_are_found_where_they_exist(spec):
    topology = parse_topology(spec)
    order = hamiltonian_cycle(topology)
    assert order is not None
    assert is_cycle(topology, order)


def test_a_bipartite_graph_of_odd_size_has_no_cycle():
    assert hamiltonian_cycle(parse_topology("mesh:3x3")) is None


@given(networks(2, 9))
def test_rings_are_right_on_any_network(topology):
    order = hamiltonian_cycle(topology)
    assert order is None or is_cycle(topology, order)
    for method in ("ring", "biring"):
        verified = synthesize(method, topology, ALLREDUCE, None, SERIAL)
        assert violations(verified.schedule) == []
        assert verified.schedule.steps == 2 * (topology.compute_count - 1)


@pytest.mark.parametrize("method", ["ring", "biring"])
def test_ranks_in_a_ring_that_also_share_a_switch(method):
    """A table of all links as routes would have some that end at the switch."""
    wires = [(0, 1), (1, 2), (2, 0), *((rank, 3) for rank in range(3))]
    links = Links.build(Link(*ends, Fraction(1)) for wire in wires for ends in (wire, wire[::-1]))
    topology = Topology("ring beside a switch", tuple("0123"), 3, links)
    verified = synthesize(method, topology, ALLREDUCE, None, SERIAL)
    assert not verified.schedule.is_in_network
    traffic = ring_traffic(topology, ALLREDUCE, method == "biring")
    assert not traffic.is_in_network


@pytest.mark.parametrize(
    ("method", "spec", "factor"),
    [
        ("ring", "ring:8", Fraction(7, 4)),
        ("biring", "ring:8", Fraction(7, 8)),
        ("ring", "hypercube:3", Fraction(21, 8)),
        ("ring", "uniring:2,5", Fraction(4, 5)),
        ("biring", "biring:4,6", Fraction(5, 6)),
    ],
)
def test_costs(method, spec, factor):
    verified = synthesize(method, parse_topology(spec), ALLGATHER, None, SERIAL)
    assert verified.cost.bandwidth_factor == factor


def test_chunks_that_do_not_divide_are_spread_as_evenly_as_possible():
    verified = synthesize("biring", parse_topology("ring:4"), ALLGATHER, Options(chunks=5), SERIAL)
    assert verified.cost.bandwidth_factor == 3 * 2 * Fraction(3, 5) / 4


@pytest.mark.parametrize("chunks", [0, -3])
def test_no_chunks_are_refused(chunks):
    with pytest.raises(InvalidInput, match="at least 1"):
        ring_allgather(parse_topology("ring:4"), bidirectional=False, chunks=chunks)


def test_unknown_methods_and_collectives_are_refused():
    with pytest.raises(InvalidInput, match="choose from bfb, ring, biring"):
        synthesize("magic", parse_topology("ring:4"), ALLGATHER, None, SERIAL)
