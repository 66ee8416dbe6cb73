"""Swing, bucket, doubling, halving, double binary trees and rings against definitions and sums; grid routes."""

from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import pairwise
from math import gcd, log2

import numpy as np
import pytest
from hypothesis import given, strategies as st

from chorale.experiments.framework.experiment import synthesized
from chorale.synth.collective import ALLGATHER, ALLREDUCE, ALLTOALL, REDUCE_SCATTER, STANDARD, parse_collective
from chorale.synth.errors import InvalidInput
from chorale.synth.methods.catalog import METHODS
from chorale.synth.methods.closed_forms import ALGORITHMS, double_binary_tree, tree_depths
from chorale.synth.methods.grid.algorithms import (
    bucket,
    rabenseifner,
    recursive_doubling,
    swing,
    swing_distance,
    swing_latency,
)
from chorale.synth.methods.grid.pattern import PairRoutes, TorusLinks, pair_routes
from chorale.synth.methods.grid.steps import grid_shape
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
from chorale.synth.topology.distance import distances_from
from chorale.synth.topology.families.grids import double_tree_parents
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Link, Links, Topology
from tests.patterns import verified_with_traffic
from tests.reference.replays import violations
from tests.strategies import networks, strongly_connected_topologies


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
    assert synthesized(method, spec).cost.bandwidth_factor == factor
    uneven = synthesized("biring", "ring:4", ALLGATHER, chunks=5)  # chunks are spread as evenly as possible
    assert uneven.cost.bandwidth_factor == 3 * 2 * Fraction(3, 5) / 4


def hops(order) -> set[tuple[int, int]]:
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


def test_rings_on_other_grids_and_one_way_and_networks_that_are_refused():
    for spec in ("uniring:1,5", "hyperx:9x3", "hxmesh:2,2x4"):
        verified = verified_with_traffic(hamiltonian_ring(parse_topology(spec), ALLGATHER))
        assert verified.schedule.steps == verified.schedule.topology.compute_count - 1
    for spec in ("torus:3x3x3", "torus:2x4", "torus:4x6", "mesh:3x3", "a100:2", "without(torus:4x4;link=0-1)"):
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


traditional_torus = partial(bucket, synchronised=False)


@pytest.mark.parametrize(
    ("spec", "shape"),
    [
        ("torus:4x3x2", (4, 3, 2)),
        ("mesh:3x5", (3, 5)),
        ("hypercube:3", (2, 2, 2)),
        ("hamming:3,4", (4, 4, 4)),
        ("hxmesh:2,3x4", (6, 8)),
        ("ring:9", (9,)),
        ("scaled(torus:4x4;link=0-1;factor=1/2)", (4, 4)),
        ("without(torus:4x4;node=3)", (15,)),
        ("line(bipartite:4)", (32,)),
    ],
)
def test_shapes(spec, shape):
    topology = parse_topology(spec)
    assert grid_shape(topology) == shape
    for name in ("a network", "file:torus.json", ""):
        assert grid_shape(replace(topology, spec=name)) == (topology.compute_count,)


def all_pairs(topology: Topology) -> PairRoutes:
    ranks = topology.compute_count
    keys = np.array([src * ranks + dst for src in range(ranks) for dst in range(ranks) if src != dst])
    return pair_routes(topology, grid_shape(topology), keys)


def walk(topology: Topology, pairs: PairRoutes, route: int, src: int, dst: int) -> list[int]:
    """Return the links of a route after checking that they lead from `src` to `dst`."""
    path = pairs.routes.path(route).tolist()
    node = src
    for link in path:
        assert topology.links.src[link] == node
        node = int(topology.links.dst[link])
    assert node == dst
    return path


def check(topology: Topology) -> PairRoutes:
    pairs = all_pairs(topology)
    hops = distances_from(topology, np.arange(topology.compute_count))
    for key, first, second in zip(pairs.keys.tolist(), pairs.first.tolist(), pairs.second.tolist(), strict=True):
        src, dst = divmod(key, topology.compute_count)
        path = walk(topology, pairs, first, src, dst)
        assert len(path) == hops[src, dst]
        if second >= 0:
            other = walk(topology, pairs, second, src, dst)
            assert len(other) == len(path)
            assert not set(path) & set(other)
    return pairs


@given(strongly_connected_topologies(2, 7, switches=3))
def test_routes_are_minimal_on_any_network(topology):
    check(topology)


@pytest.mark.parametrize("spec", ["torus:4x6", "torus:5x2x3", "hypercube:4"])
def test_tori_are_recognised_and_routed_dimension_by_dimension(spec):
    topology = parse_topology(spec)
    shape = grid_shape(topology)
    assert TorusLinks.of(topology, shape) is not None
    pairs = check(topology)
    for key, first in zip(pairs.keys.tolist(), pairs.first.tolist(), strict=True):
        path = walk(topology, pairs, first, *divmod(key, topology.compute_count))
        ends = [np.unravel_index((topology.links.src[link], topology.links.dst[link]), shape) for link in path]
        axes = [next(axis for axis, pair in enumerate(end) if pair[0] != pair[1]) for end in ends]
        assert axes == sorted(axes)


@pytest.mark.parametrize("spec", ["mesh:4x4", "hyperx:3x4", "biring:4,6", "without(torus:4x4;link=0-1)"])
def test_other_networks_are_not_taken_for_tori(spec):
    topology = parse_topology(spec)
    assert TorusLinks.of(topology, grid_shape(topology)) is None
    check(topology)


@pytest.mark.parametrize(("spec", "two_ways"), [("torus:6", {3}), ("biring:4,6", {1, 2, 3, 4, 5})])
def test_opposite_nodes_of_a_ring_and_parallel_links_are_reached_in_two_ways(spec, two_ways):
    pairs = check(parse_topology(spec))
    src, dst = np.divmod(pairs.keys, 6)
    assert ((pairs.second >= 0) == np.isin((dst - src) % 6, list(two_ways))).all()


def test_equal_ways_of_a_fat_tree_are_spread():
    pairs = all_pairs(parse_topology("fattree:4"))
    core = {tuple(pairs.routes.path(int(route)).tolist()[1:-1]) for route in pairs.first}
    assert len(core) > 16  # one way per pair of edge switches would be few


def shapes(nodes: int, least: int = 2) -> list[tuple[int, ...]]:
    """Return all ways to write `nodes` as a product of sizes >= `least`, sizes rising."""
    found: list[tuple[int, ...]] = [(nodes,)] if nodes >= least else []
    for size in range(least, int(nodes**0.5) + 1):
        if nodes % size == 0:
            found += [(size, *rest) for rest in shapes(nodes // size, size)]
    return found


def torus_specs(nodes: int) -> list[str]:
    """Return the specs of all tori of `nodes` nodes, up to the order of dimensions (which alternates)."""
    sizes = [shape if number % 2 else shape[::-1] for number, shape in enumerate(shapes(nodes))]
    return ["torus:" + "x".join(map(str, shape)) for shape in sizes]


def sent_by_each_rank(schedule) -> set[Fraction]:
    """Return what ranks send over the whole schedule, as fractions of the vector (one, if all send the same)."""
    sent = np.zeros(schedule.topology.compute_count, dtype=np.int64)
    np.add.at(sent, schedule.src, schedule.transfers.hi.astype(np.int64) - schedule.transfers.lo)
    return {Fraction(int(amount), schedule.chunks_per_shard * len(sent)) for amount in sent}


def expected_steps(method, shape: tuple[int, ...]) -> int:
    """Return the steps of an allreduce."""
    rounds = sum(size.bit_length() - 1 for size in shape)
    folds = sum(size.bit_count() > 1 for size in shape)
    return {
        swing: 2 * sum((size - size % 2 - 1).bit_length() for size in shape),  # the even number of positions that swing
        swing_latency: rounds + 2 * folds,
        recursive_doubling: rounds + 2 * folds,
        rabenseifner: 2 * (rounds + folds),
        bucket: 2 * len(shape) * (max(shape) - 1),
        traditional_torus: 2 * sum(size - 1 for size in shape),
    }[method]


@pytest.mark.parametrize("nodes", [2, 3, 7, 12, 16, 18])
@pytest.mark.parametrize("method", [swing, swing_latency, rabenseifner, recursive_doubling])
def test_halving_and_exchanges_on_all_tori(method, nodes):
    optimum = 2 * Fraction(nodes - 1, nodes)
    for spec in torus_specs(nodes):
        topology = parse_topology(spec)
        shape = grid_shape(topology)
        for all_ports in (True, False):
            verified = verified_with_traffic(method(topology, ALLREDUCE, all_ports))
            assert verified.schedule.steps == expected_steps(method, shape)
            if method is swing:
                assert sent_by_each_rank(verified.schedule) == {optimum}  # no byte too many
                assert verified.link_loads.duplicate_deliveries == 0
            elif all(size.bit_count() == 1 for size in shape):
                rounds = sum(size.bit_length() - 1 for size in shape)
                assert sent_by_each_rank(verified.schedule) == {optimum if method is rabenseifner else rounds}


@pytest.mark.parametrize("nodes", [3, 8, 9, 24])
def test_bucket_on_all_tori(nodes):
    for spec in torus_specs(nodes):
        topology = parse_topology(spec)
        shape = grid_shape(topology)
        together, at_once = (
            verified_with_traffic(method(topology, ALLREDUCE)) for method in (bucket, traditional_torus)
        )
        assert together.schedule.steps == expected_steps(bucket, shape)
        assert at_once.schedule.steps == expected_steps(traditional_torus, shape)
        if len(set(shape)) == 1 and min(shape) > 2:
            optimum = 2 * Fraction(nodes - 1, nodes)
            assert together.cost.bandwidth_factor == at_once.cost.bandwidth_factor == optimum
        if len(shape) == 2 and min(shape) > 2:
            assert together.cost.time_per_byte <= at_once.cost.time_per_byte


@pytest.mark.parametrize("name", ["allgather", "reduce_scatter", "broadcast", "reduce"])
@pytest.mark.parametrize("nodes", [2, 3, 6, 12])
def test_other_collectives(nodes, name):
    collective = parse_collective(name, 1)
    for spec in torus_specs(nodes):
        topology = parse_topology(spec)
        for all_ports in (False, True):
            halved = verified_with_traffic(rabenseifner(topology, collective, all_ports))
            assert halved.schedule.steps <= expected_steps(recursive_doubling, grid_shape(topology))
            swung = verified_with_traffic(swing(topology, collective, all_ports))
            assert swung.schedule.steps <= expected_steps(swing, grid_shape(topology)) / 2
        if collective.root is None:
            verified_with_traffic(bucket(topology, collective, synchronised=nodes % 2 == 0, all_ports=nodes % 3 == 0))


def test_peers_are_those_of_figures_5_and_6():
    """On 2x4 every rank has reached its column after two steps, so the last one uses the longer dimension only."""

    def peers_of_rank_0(spec: str) -> list[set[int]]:
        schedule = swing(parse_topology(spec), REDUCE_SCATTER).schedule()
        mine = schedule.src == 0
        return [set(schedule.dst[mine & (schedule.transfers.step == s)].tolist()) for s in range(schedule.steps)]

    assert peers_of_rank_0("torus:4x4")[0] == {1, 3, 4, 12}
    steps = peers_of_rank_0("torus:2x4")
    assert steps[0] == {1, 3, 4}
    assert steps[2] <= {1, 3}


def time_of(pattern) -> Fraction:
    """Return the sum over steps of the load of the busiest link, in vectors."""
    traffic = pattern.traffic()
    return sum(Fraction(int(traffic.link_amounts(step).max()), traffic.denominator) for step in traffic.steps)


@pytest.mark.parametrize(("spec", "dimensions", "side"), [("torus:16x16", 2, 16), ("torus:8x8x8", 3, 8)])
def test_congestion_is_the_papers_sum(spec, dimensions, side):
    """Swing paper, sections 2.3.2, 2.3.3 and 4.1: the busiest link carries as many messages as they are hops long.

    Step s of Swing sends 2^-(s+1) of a port's vector over delta(s // D) links each. The last step of a dimension of
    recursive doubling, of half its length, goes both ways: a quarter of the side.
    """
    topology = parse_topology(spec)
    steps = range(int(log2(topology.compute_count)))
    hops = [abs(swing_distance(step // dimensions)) for step in steps]
    swung = sum(Fraction(links, 2 ** (step + 1)) for step, links in enumerate(hops))
    assert time_of(swing(topology, ALLREDUCE)) == swung / dimensions
    doubled = [min(1 << step // dimensions, side // 4) for step in steps]
    assert time_of(recursive_doubling(topology, ALLREDUCE)) == sum(doubled)
    halved = 2 * sum(Fraction(links, 2 ** (step + 1)) for step, links in enumerate(doubled))
    assert time_of(rabenseifner(topology, ALLREDUCE)) == halved


@pytest.mark.parametrize("spec", ["torus:3x9", "torus:4x16"])
def test_short_dimensions_send_in_pieces_so_that_they_hold_nobody_up(spec):
    """Every step takes as long as a block of the longest dimension, or of what is left after a shorter one."""
    topology = parse_topology(spec)
    short, long = grid_shape(topology)
    traffic = bucket(topology, REDUCE_SCATTER).traffic()
    amounts = [Fraction(int(traffic.link_amounts(step).max()), traffic.denominator) for step in traffic.steps]
    assert max(amounts) == Fraction(1, 4 * long)
    assert sum(amounts) == Fraction(long - 1, 4 * long) * (1 + Fraction(1, short))


@pytest.mark.parametrize(("synchronised", "shared"), [(True, False), (False, True)])
def test_waiting_keeps_links_unshared(synchronised, shared):
    """Figure 10: the ring that is through early meets the other one unless it waits."""
    pattern = bucket(parse_topology("torus:3x6"), ALLREDUCE, synchronised)
    busiest = 0
    for step in range(len(pattern.traffic().steps)):
        users: dict[tuple[int, int], set[int]] = {}
        for number, port in enumerate(pattern.subcollectives):
            src, dst, _ = port[step].messages()
            for pair in zip(src.tolist(), dst.tolist(), strict=True):
                users.setdefault(pair, set()).add(number)
        busiest = max(busiest, *map(len, users.values()))
    assert (busiest > 1) == shared


def test_refusals():
    topology = parse_topology("torus:4")
    pattern = swing_latency(parse_topology("torus:64x64"), ALLREDUCE)
    with pytest.raises(InvalidInput, match="at most 134217728 transfers"):
        pattern.schedule()
    assert len(pattern.traffic().steps) == 12
    with pytest.raises(InvalidInput, match="at most 4096 positions"):
        swing(parse_topology("ring:5000"), ALLREDUCE)
    with pytest.raises(InvalidInput, match="at least 1"):
        swing(topology, ALLREDUCE).schedule(0)
    for method, collective, name in (
        (swing, ALLTOALL, "swing makes allgather"),
        (swing_latency, ALLGATHER, "swing-latency makes allreduce"),
        (recursive_doubling, ALLGATHER, "recursive-doubling makes allreduce"),
        (bucket, parse_collective("broadcast"), "bucket makes allgather"),
        (double_binary_tree, ALLGATHER, "double-binary-tree makes allreduce"),
    ):
        with pytest.raises(InvalidInput, match=name):
            method(topology, collective)


@pytest.mark.parametrize("nodes", [2, 3, 9, 24, 33])
def test_double_binary_trees(nodes):
    topology, parents = parse_topology(f"dbt:{nodes}"), double_tree_parents(nodes)
    height = max(int(tree_depths(parent).max()) for parent in parents)
    verified = verified_with_traffic(double_binary_tree(topology, ALLREDUCE))
    assert verified.schedule.kind == "pipelined"
    assert verified.schedule.steps == 2 * height <= 2 * nodes.bit_length()
    # Half of the vector each way on the links of a tree; where both trees use a link, all of it.
    assert verified.cost.time_per_byte <= 1
    for name in ("broadcast", "reduce"):
        verified = verified_with_traffic(double_binary_tree(topology, parse_collective(name, nodes // 2)))
        assert verified.schedule.steps <= height + 1
    for spec in torus_specs(nodes):
        verified_with_traffic(double_binary_tree(parse_topology(spec), ALLREDUCE))
    inner = [set(parent[parent >= 0].tolist()) - {int(np.argmin(parent))} for parent in parents]
    assert not inner[0] & inner[1]
    assert max(np.bincount(parent[parent >= 0], minlength=nodes).max() for parent in parents) <= 2


@pytest.mark.parametrize("method", list(ALGORITHMS))
def test_methods_make_what_they_say_and_refuse_the_rest(method):
    topology = parse_topology("torus:3x3")
    for name in STANDARD:
        collective = parse_collective(name, 4)
        if name in METHODS[method].collectives:
            verified = synthesized(method, topology, collective, chunks=8)
            assert (verified.schedule.collective, verified.schedule.chunks_per_shard) == (collective, 8)
        else:
            with pytest.raises(InvalidInput, match=f"{method} makes"):
                synthesized(method, topology, collective)


@pytest.mark.parametrize("method", list(METHODS))
def test_a_root_that_is_no_rank_is_refused_by_every_method_that_has_roots(method):
    for name in {"broadcast", "reduce"} & set(METHODS[method].collectives):
        for root in (-1, 4):
            with pytest.raises(InvalidInput, match="is not a rank"):
                synthesized(method, "hypercube:2", parse_collective(name, root))
