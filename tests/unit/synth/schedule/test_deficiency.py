"""Table 2 of the Swing paper from the schedules themselves, and what deficiencies mean on any network.

On a square torus of p nodes in D dimensions of side 2^m. The optimum here is 2 (p - 1) / p of the vector over all
ports, not 2, so that bandwidth-optimal algorithms have exactly 1.
"""

from fractions import Fraction
from math import log2

import pytest
from hypothesis import given

from chorale.synth.collective import ALLGATHER, ALLREDUCE, Collective, CollectiveName
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.methods.catalog import synthesize
from chorale.synth.methods.closed_forms import double_binary_tree
from chorale.synth.methods.grid.algorithms import bucket, rabenseifner, recursive_doubling, swing, swing_latency
from chorale.synth.methods.rings.rings import bfb_ring, hamiltonian_ring
from chorale.synth.schedule.traffic import Deficiencies, deficiencies, traffic_of
from chorale.synth.topology.spec import parse_topology
from tests.strategies import networks

SQUARE = [(2, 4), (2, 8), (2, 16), (2, 32), (2, 64), (3, 4), (3, 8), (3, 16), (4, 4), (4, 8)]
square = pytest.mark.parametrize(("dimensions", "side"), SQUARE)


def on_torus(method, dimensions: int, side: int) -> Deficiencies:
    return deficiencies(method(parse_topology("torus:" + "x".join([str(side)] * dimensions)), ALLREDUCE).traffic())


def finite(nodes: int) -> Fraction:
    """Return 2 over the exact optimum 2 (p - 1) / p."""
    return Fraction(nodes, nodes - 1)


def swing_hops(dimensions: int, step: int) -> int:
    """Return delta(sigma(s)) of the paper."""
    return abs(sum((-2) ** i for i in range(step // dimensions + 1)))


def doubling_hops(dimensions: int, step: int) -> int:
    return 1 << step // dimensions


def nodes_and_steps(dimensions: int, side: int) -> tuple[int, int]:
    nodes = side**dimensions
    return nodes, nodes.bit_length() - 1


@pytest.mark.parametrize("side", [4, 8, 16, 32, 64])
def test_ring(side):
    found = on_torus(hamiltonian_ring, 2, side)
    assert found.latency == 2 * (side**2 - 1) / log2(side**2)  # 2 p / log2 p
    assert (found.bandwidth, found.congestion) == (1, 1)


@square
def test_recursive_doubling_latency_optimal(dimensions, side):
    """Printed: 1, D log2 p, 2 D p^(1/D). In the last step of a dimension half goes either way (footnote 1)."""
    nodes, steps = nodes_and_steps(dimensions, side)
    found = on_torus(recursive_doubling, dimensions, side)
    assert found.latency == 1
    assert found.bandwidth == finite(nodes) * (dimensions * steps - Fraction(dimensions**2, 2))
    assert found.congestion_sum == dimensions * (side - 1) <= 2 * dimensions * side


@square
def test_recursive_doubling_bandwidth_optimised(dimensions, side):
    """Printed: 2, 2 D, (2^D - 1) / (2^D - 2), the limits; the sums differ by the last step of each dimension."""
    nodes, steps = nodes_and_steps(dimensions, side)
    found = on_torus(rabenseifner, dimensions, side)
    sizes = [Fraction(1, 2 ** (step + 1)) for step in range(steps)]
    halved = [size / (2 if step >= steps - dimensions else 1) for step, size in enumerate(sizes)]
    hops = [doubling_hops(dimensions, step) for step in range(steps)]
    shared = sum(size * count for size, count in zip(halved, hops, strict=True))
    assert found.latency == 2
    assert found.bandwidth == 2 * dimensions * finite(nodes) * sum(halved)
    assert found.congestion == shared / sum(halved)
    assert found.congestion < Fraction(2**dimensions - 1, 2**dimensions - 2)


@square
def test_bucket(dimensions, side):
    _, steps = nodes_and_steps(dimensions, side)
    found = on_torus(bucket, dimensions, side)
    assert found.latency == 2 * dimensions * (side - 1) / steps  # 2 D p^(1/D) / log2 p
    assert (found.bandwidth, found.congestion) == (1, 1)


@square
def test_swing_latency_optimal(dimensions, side):
    """Printed: 1, D log2 p, 4/3 D p^(1/D). The second is what one port would take: with all 2 D it is log2 p / 2."""
    nodes, steps = nodes_and_steps(dimensions, side)
    found = on_torus(swing_latency, dimensions, side)
    assert found.latency == 1
    assert found.bandwidth == finite(nodes) * Fraction(steps, 2)
    distances = sum(swing_hops(dimensions, step) for step in range(steps))
    assert found.congestion_sum == distances <= Fraction(4, 3) * dimensions * side
    one_port = on_torus(lambda topology, c: swing_latency(topology, c, all_ports=False), dimensions, side)
    assert one_port.bandwidth == finite(nodes) * dimensions * steps


@square
def test_swing_bandwidth_optimal(dimensions, side):
    nodes, steps = nodes_and_steps(dimensions, side)
    found = on_torus(swing, dimensions, side)
    assert (found.latency, found.bandwidth) == (2, 1)
    sizes = [Fraction(1, 2 ** (step + 1)) for step in range(steps)]
    shared = sum(size * swing_hops(dimensions, step) for step, size in enumerate(sizes))
    assert found.congestion == finite(nodes) * shared


def test_swing_has_no_congestion_on_hyperx():
    assert deficiencies(swing(parse_topology("hyperx:8x8"), ALLREDUCE).traffic()).congestion == 1


def test_mirrored_doubling_is_worse_than_swing():
    """Section 4.1: mirroring takes away bandwidth deficiency, distance stays."""
    mirrored = on_torus(lambda topology, c: rabenseifner(topology, c, all_ports=True), 2, 16)
    plain, better = on_torus(rabenseifner, 2, 16), on_torus(swing, 2, 16)
    assert better.bandwidth <= mirrored.bandwidth < plain.bandwidth
    assert better.congestion < mirrored.congestion


@given(networks(2, 7))
def test_product_is_the_verified_time_over_the_optimum(topology):
    for method in ("bfb", "ring"):
        verified = synthesize(method, topology, ALLGATHER, None, SerialExecutor())
        found = deficiencies(traffic_of(verified.schedule))
        ports = min(
            sum(link.bandwidth for link in topology.links if link.src == rank and link.dst != rank)
            for rank in range(topology.compute_count)
        )
        least = Fraction(topology.compute_count - 1, topology.compute_count) / ports
        assert found.bandwidth * found.congestion * least == verified.cost.time_per_byte
        assert found.congestion >= 1
        assert found.steps == verified.cost.steps


def test_bfb_and_bfb_rings_have_no_deficiency_in_bytes():
    bfb = deficiencies(
        traffic_of(synthesize("bfb", parse_topology("torus:4x3"), ALLREDUCE, None, SerialExecutor()).schedule)
    )
    rings = deficiencies(bfb_ring(parse_topology("shiftedring:12"), ALLREDUCE).traffic())
    assert (bfb.bandwidth, bfb.congestion) == (rings.bandwidth, rings.congestion) == (1, 1)
    assert bfb.latency < rings.latency


def test_pipelined_trees_stream():
    root = Collective(CollectiveName.BROADCAST, 0)
    found = deficiencies(double_binary_tree(parse_topology("dbt:16"), root).traffic())
    assert found.bandwidth * found.congestion >= 1
    assert found.steps == 5
