"""Trees packed into networks, switches removed before, and pairs of trees for allreduce; refusals by name."""

import hashlib
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from random import Random
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, strategies as st

from chorale.experiments.framework.experiment import synthesized
from chorale.synth.bounds.certificate import check_pair_certificate
from chorale.synth.bounds.lower_bound import lower_bound, reduce_scatter_allgather_time
from chorale.synth.bounds.residual_graph import LARGEST_AMOUNT
from chorale.synth.bounds.tree_pairs import TreePairs, tree_pairs
from chorale.synth.collective import ALLREDUCE, parse_collective
from chorale.synth.errors import CheckFailed, InvalidInput
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.kernels.splitmix import splitmix
from chorale.synth.methods.forest import allreduce_pairs as pairs_module, packing
from chorale.synth.methods.forest.allreduce_pairs import faster_pairs, integral_pairs, pair_schedule
from chorale.synth.methods.forest.network import ForestNetwork, Trees, narrow_cuts, tree_heights
from chorale.synth.methods.forest.packing import MOST_LATE_WORK, ROLLBACKS, hypercube_trees, layered_trees, pack_trees
from chorale.synth.methods.forest.switch_removal import SplitNetwork, remove_switches
from chorale.synth.methods.method import Objective, Options, SynthesisTask
from chorale.synth.topology.distance import diameter
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Link, Links, Topology
from chorale.synth.topology.translations import Transversal
from chorale.synth.verify.verify import verify
from tests.forest_networks import (
    boxes,
    can_be_packed,
    forest_network,
    network_of,
    optimal_network,
    random_arcs,
    random_supply,
    tight_network,
    torus,
)
from tests.links import both, network
from tests.properties import random_cases
from tests.random_fabrics import random_fabric
from tests.reference.cuts import Arc, violated_sink_sides
from tests.reference.packed_trees import faults_of, height_of

STAR = network(4, 0, both((0, 1, 1), (0, 2, 1), (0, 3, 1)))


@pytest.mark.parametrize("first", [0, pytest.param(40, marks=pytest.mark.slow)])
def test_allreduce_takes_the_better_of_both(first: int) -> None:
    chosen = set()
    for seed in range(first, first + 40):
        topology = random_fabric(seed)
        pairs, both = tree_pairs(topology).time_per_byte, reduce_scatter_allgather_time(topology)
        verified = synthesized("forest", topology, ALLREDUCE, gap=0)
        assert verified.cost.time_per_byte == min(pairs, both), seed
        assert (verified.schedule.certificate["kind"] == "tree-pairs") == (pairs < both)
        chosen.add(pairs < both)
    assert chosen == {False, True}


@pytest.mark.parametrize(
    ("spec", "algbw"),
    [
        ("mesh:4x4", Fraction(8, 5)),
        ("without(mi250:2;node=3)", Fraction(645, 4)),
        ("without(a100:2;node=5)", Fraction(2775, 16)),
    ],
)
def test_named_fabrics_are_faster_than_two_phases(spec: str, algbw: Fraction) -> None:
    verified = synthesized("forest", spec, ALLREDUCE)
    topology = verified.schedule.topology
    assert 1 / verified.cost.time_per_byte == algbw > 1 / reduce_scatter_allgather_time(topology)
    assert check_pair_certificate(topology, verified.schedule.certificate) == verified.cost.time_per_byte
    assert verified.schedule.trees_per_root is None


def test_the_centre_of_a_star_adds_everything_up() -> None:
    schedule = synthesized("forest", STAR, ALLREDUCE).schedule
    assert (schedule.steps, schedule.chunks_per_shard, len(schedule.transfers)) == (2, 1, 6 * 4)
    assert set(schedule.dst[schedule.transfers.reduce == 1].tolist()) == {0}
    assert set(schedule.src[schedule.transfers.reduce == 0].tolist()) == {0}


def test_low_trees_in_go_with_high_trees_out() -> None:
    schedule = synthesized("forest", "without(mi250:2;node=3)", ALLREDUCE).schedule
    rows, chunks = schedule.transfers, schedule.chunks_per_shard
    last_sum, last_copy = np.zeros((2, schedule.shard_count * chunks), dtype=np.int64)
    first_copy = np.full(len(last_sum), schedule.steps)
    for step, shard, lo, hi, reduces in zip(rows.step, rows.shard, rows.lo, rows.hi, rows.reduce, strict=True):
        units = slice(int(shard) * chunks + int(lo), int(shard) * chunks + int(hi))
        if reduces:
            last_sum[units] = np.maximum(last_sum[units], int(step))
        else:
            first_copy[units] = np.minimum(first_copy[units], int(step))
            last_copy[units] = np.maximum(last_copy[units], int(step))
    assert (last_sum < first_copy).all()
    assert (rows.step.min(), last_copy.max() + 1) == (0, schedule.steps)
    highest_in, highest_out = last_sum.max() + 1, (last_copy - first_copy).max() + 1
    assert schedule.steps < highest_in + highest_out


@pytest.mark.parametrize("spec", ["ring:4", "a100:2"])
def test_no_program_is_solved_where_two_phases_meet_a_bound(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_topology: Topology) -> TreePairs:
        raise AssertionError("not needed")

    monkeypatch.setattr(pairs_module, "pairs_if_countable", refuse)
    topology = parse_topology(spec)
    assert lower_bound(topology, ALLREDUCE).value == reduce_scatter_allgather_time(topology)
    assert faster_pairs(SynthesisTask(topology, ALLREDUCE, Options(), SerialExecutor())) is None


def test_two_phases_can_be_asked_for() -> None:
    pairs, phases = synthesized("forest", "mesh:4x4", ALLREDUCE), synthesized("forest-phases", "mesh:4x4", ALLREDUCE)
    assert (phases.schedule.method, 1 / phases.cost.time_per_byte) == ("forest-phases", Fraction(16, 15))
    assert phases.cost.steps < pairs.cost.steps
    with pytest.raises(InvalidInput, match="forest-phases makes allreduce"):
        synthesized("forest-phases", STAR)


def test_splits_too_fine_for_whole_trees_are_rounded() -> None:
    topology = parse_topology("without(mi250:2;node=3)")
    split = tree_pairs(topology).split
    whole = integral_pairs(topology, split, most_pairs=600)
    assert whole.roots.sum() == 600 // 31 * 31
    assert 1 <= whole.time_per_byte * split.rate < Fraction(11, 10)
    assert verify(pair_schedule(topology, whole, Options(), {}, {})).cost.time_per_byte <= whole.time_per_byte


@pytest.mark.parametrize("k", [0, pairs_module.MAX_PAIRS])
def test_senseless_numbers_of_trees_and_more_than_a_cut_carries_are_refused(k: int) -> None:
    with pytest.raises(InvalidInput, match="at least one tree per root, and at most"):
        integral_pairs(STAR, tree_pairs(STAR).split, k)
    whole = integral_pairs(STAR, tree_pairs(STAR).split)
    with pytest.raises(CheckFailed, match="more trees start in a set of nodes than can leave it"):
        pair_schedule(STAR, replace(whole, roots=2 * whole.roots), Options(), {}, {})


def carries(network: ForestNetwork) -> bool:
    arcs = list(zip(network.src.tolist(), network.dst.tolist(), network.capacity.tolist(), strict=True))
    return not any(violated_sink_sides(network.nodes, arcs, network.supply.tolist(), range(network.compute_count)))


def assert_paths_are_real(split: SplitNetwork) -> None:
    """Every piece is a path between the ends of its arc that visits no node twice; loads stay within capacity."""
    original, network, pieces = split.original, split.network, split.pieces
    load = np.zeros(len(original.src), dtype=np.int64)
    for arc in range(len(network.src)):
        total = 0
        for piece in range(pieces.offsets[arc], pieces.offsets[arc + 1]):
            start, units = pieces.start[piece], int(pieces.amount[piece])
            path = pieces.hops[start : start + pieces.length[piece]].tolist()
            visited = [int(original.src[path[0]]), *(int(original.dst[hop]) for hop in path)]
            assert visited[0] == network.src[arc]
            assert visited[-1] == network.dst[arc]
            assert all(original.src[hop] == node for hop, node in zip(path, visited, strict=False))
            assert len(set(visited)) == len(visited)
            assert units > 0
            load[path] += units
            total += units
        assert total == network.capacity[arc]
    assert (load <= original.capacity).all()


def assert_lossless(network: ForestNetwork, patience: int) -> None:
    split = remove_switches(network, patience)
    assert split.network.nodes == network.compute_count
    assert carries(split.network)
    assert_paths_are_real(split)


def merged(topology: Topology) -> Topology:
    """Return `topology` with one link for all parallel ones, so that whole trees need not balance at switches."""
    rates = Counter[tuple[int, int]]()
    for link in topology.links:
        rates[link.src, link.dst] += link.bandwidth  # type: ignore[assignment]
    return replace(topology, links=Links.build(Link(*ends, Fraction(rate)) for ends, rate in rates.items()))


@pytest.mark.parametrize("patience", [1, pytest.param(8, marks=pytest.mark.slow)])
def test_nothing_is_lost_at_the_optimum_and_for_whole_trees(patience: int) -> None:
    unbalanced = 0
    for seed in range(100):
        topology = merged(random_fabric(seed))
        network = optimal_network(topology)
        assert carries(network)
        assert_lossless(network, patience)
        network = optimal_network(topology, 1 + seed // 2 % 2)
        entering, leaving = (np.bincount(ends, network.capacity, network.nodes) for ends in (network.dst, network.src))
        unbalanced += bool((entering != leaving).any())
        assert_lossless(network, patience)
    assert unbalanced > 0


def test_a_switch_with_more_trees_out_than_in_is_refused_by_its_name() -> None:
    arcs = [(0, 3, 1), (3, 1, 1), (3, 2, 1), (1, 0, 1), (2, 0, 1)]
    network = replace(network_of(4, arcs, [1, 0, 0, 0]), compute_count=3)
    with pytest.raises(InvalidInput, match="switch node 3, with 1 trees in and 2 trees out left to join"):
        remove_switches(network, names=[f"node {number}" for number in range(4)])


@pytest.mark.parametrize(
    ("spec", "k", "longest"),
    [
        ("a100:4", 1, 4),
        ("mi250:2", None, 2),
        ("fattree:8", None, 6),
        ("dragonfly:4,2,2", None, 5),
        ("without(a100:16;node=3)", None, 4),
    ],
)
def test_routes_of_fabrics_are_shortest(spec: str, k: int | None, longest: int) -> None:
    split = remove_switches(optimal_network(parse_topology(spec), k))
    assert len(narrow_cuts(split.network, 1)) == 0
    assert split.pieces.length.max() == longest
    assert_paths_are_real(split)
    if spec in ("fattree:8", "dragonfly:4,2,2"):  # no bottleneck
        assert len(split.network.src) == split.network.nodes * (split.network.nodes - 1)


OBJECTIVES: tuple[Objective, ...] = get_args(Objective)


def _digest(trees: Trees) -> str:
    columns = (trees.root, trees.weight, trees.parent_arc)
    return hashlib.sha256(b"".join(column.tobytes() for column in columns)).hexdigest()


def _assert_packed_or_refused(nodes: int, arcs: list[Arc], supply: list[int], rollbacks: int, seed: int) -> None:
    network, objective = network_of(nodes, arcs, supply), OBJECTIVES[seed % 3]
    if can_be_packed(nodes, arcs, supply):
        assert faults_of(network, pack_trees(network, objective, seed, rollbacks=rollbacks)) == []
    else:
        with pytest.raises(CheckFailed, match="can leave it"):
            pack_trees(network, objective, seed, rollbacks=rollbacks)


@random_cases(100)
@given(st.randoms(use_true_random=False), st.integers(1, 6), st.sampled_from([0, 1, ROLLBACKS]))
def test_any_network_is_packed_or_refused(random: Random, nodes: int, rollbacks: int) -> None:
    """Also with as many trees as the narrowest cut lets out."""
    if nodes > 1 and random.random() < 0.7:
        network = tight_network(random, nodes)
    else:
        network = nodes, random_arcs(random, nodes) if nodes > 1 else [], random_supply(random, nodes)
    _assert_packed_or_refused(*network, rollbacks, random.randrange(9))


def test_a_box_is_not_entered_over_scarce_arcs_twice() -> None:
    # Three arcs lead from every node into every other box, as thin as the rails are; one tree needs only one.
    count, ranks = 6, 4
    arcs = []
    for node in range(count * ranks):
        box, rank = divmod(node, ranks)
        arcs += [(node, box * ranks + other, 50) for other in range(ranks) if other != rank]
        arcs += [(node, o * ranks + (rank + j) % ranks, 1) for o in range(count) if o != box for j in range(3)]
    network = network_of(count * ranks, arcs, [2] * (count * ranks))
    trees = pack_trees(network, "trees")
    assert faults_of(network, trees) == []
    crossing = network.src // ranks != network.dst // ranks
    for row in trees.parent_arc:
        assert crossing[row[row >= 0]].sum() == count - 1


@pytest.mark.parametrize(
    ("arcs", "most_trees", "height"),
    [
        (boxes(8, 4, 12, 1), 32, 2),  # boxes are crossed in two hops
        (network_of(3, [(a, b, 10**9) for a in range(3) for b in range(3)], [10**9] * 3), 9, 2),  # nor split into units
    ],
)
def test_trees_are_low_and_few(arcs: ForestNetwork, most_trees: int, height: int) -> None:
    trees = pack_trees(arcs)
    assert faults_of(arcs, trees) == []
    assert (len(trees) <= most_trees, height_of(arcs, trees) <= height) == (True, True)


def test_no_supply_needs_no_trees_and_switches_and_huge_amounts_are_refused() -> None:
    network = network_of(3, [(0, 1, 1), (1, 2, 1)], [0, 0, 0])
    assert pack_trees(network).parent_arc.shape == (0, 3)
    with pytest.raises(InvalidInput, match="trees cannot be packed into a network with switches"):
        pack_trees(ForestNetwork(2, 3, network.src, network.dst, network.capacity, network.supply))
    with pytest.raises(InvalidInput, match="choose a smaller k"):
        pack_trees(replace(network, capacity=network.capacity * (LARGEST_AMOUNT // 2)))


def test_the_same_trees_in_every_process() -> None:
    program = (
        "from tests.forest_networks import forest_network, torus\n"
        "from chorale.synth.methods.forest.packing import pack_trees\n"
        "from tests.unit.synth.methods.test_packing import _digest\n"
        "print(*(_digest(pack_trees(torus(5, 4), objective, 3)) for objective in ('height', 'trees')))"
    )
    other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    here = [[_digest(pack_trees(torus(5, 4), objective, 3)) for objective in OBJECTIVES[:2]] for _ in range(2)]
    assert here == [other.stdout.split()] * 2


def test_objectives_choose_among_optimal_packings() -> None:
    network = torus(6, 6)
    low, few, balanced = (pack_trees(network, objective) for objective in OBJECTIVES)
    assert [faults_of(network, trees) for trees in (low, few, balanced)] == [[], [], []]
    assert height_of(network, low) == 6 < height_of(network, few)
    assert len(few) < len(low)
    area = [height_of(network, trees) * len(trees) for trees in (low, few, balanced)]
    assert area[2] == min(area)


def hypercube(dimensions: int, capacity: int, supply: int, seed: int = 0) -> ForestNetwork:
    """Return a hypercube whose nodes have other names, with `supply` at one of them."""
    nodes, random = 2**dimensions, Random(seed)
    names = random.sample(range(nodes), nodes)
    arcs = [(names[x], names[x ^ 1 << bit], capacity) for x in range(nodes) for bit in range(dimensions)]
    root = random.randrange(nodes)
    return network_of(nodes, arcs, [supply * (node == root) for node in range(nodes)])


@pytest.mark.parametrize("dimensions", [1, 2, 5, 7])
def test_as_many_trees_as_dimensions_use_every_arc_but_those_into_the_root(dimensions: int) -> None:
    network = hypercube(dimensions, 3, 3 * dimensions, dimensions)
    trees = hypercube_trees(network)
    assert trees is not None
    assert faults_of(network, trees) == []
    assert trees.weight.tolist() == [3] * dimensions
    used = np.sort(trees.parent_arc[trees.parent_arc >= 0])
    assert used.tolist() == np.flatnonzero(network.dst != trees.root[0]).tolist()
    assert max(tree_heights(trees, network.src)) == (dimensions + 1 if dimensions > 1 else 1)


def test_one_arc_that_ends_elsewhere_makes_it_another_network() -> None:
    whole = hypercube(4, 1, 4)
    pairs = set(zip(whole.src.tolist(), whole.dst.tolist(), strict=True))
    for src, dst in pairs:
        elsewhere = next(node for node in range(16) if node != src and (src, node) not in pairs)
        changed = [(*pair, 1) for pair in pairs - {(src, dst)} | {(src, elsewhere)}]
        assert hypercube_trees(network_of(16, changed, whole.supply.tolist())) is None
    assert hypercube_trees(hypercube(3, 1, 4)) is None  # narrow arcs are left to packing
    assert hypercube_trees(hypercube(4, 1, 1)) is None  # one tree alone is lower
    assert synthesized("forest", "hypercube:4", "broadcast", k=1).schedule.steps == 4


@pytest.mark.parametrize(("spec", "collective"), [("hypercube:6", "broadcast"), ("torus:4x4", "reduce")])
def test_schedules_are_verified_optimal_and_low(spec: str, collective: str) -> None:
    schedule = synthesized("forest", spec, parse_collective(collective, 5)).schedule
    dimensions = schedule.topology.compute_count.bit_length() - 1
    assert (schedule.steps, schedule.trees_per_root) == (dimensions + 1, dimensions)


def _at_its_optimum(spec: str) -> tuple[ForestNetwork, Transversal]:
    topology = parse_topology(spec)
    nodes, degree = topology.compute_count, topology.degree
    assert degree is not None
    supply = np.full(nodes, degree, dtype=np.int64)
    return forest_network(topology, Fraction(nodes - 1), supply), Transversal.of(topology)


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("spec", ["torus:6x5", "circulant:30,1,7", "uniring:2,7", "hamming:2,4"])
def test_the_height_of_a_whole_packing_is_the_diameter(spec: str, symmetric: bool) -> None:
    network, transversal = _at_its_optimum(spec)
    trees = layered_trees(network, transversal if symmetric else None)
    assert faults_of(network, trees) == []
    assert height_of(network, trees) == diameter(parse_topology(spec))


def test_neighbours_at_the_same_distance_help() -> None:
    # Node 3 is two hops from 0 by node 1 only, whose arc is too thin for both trees; node 2 is as far as 3.
    arcs = [(0, 1, 2), (1, 2, 2), (1, 3, 1), (2, 3, 1)]
    network = network_of(4, arcs, [2, 0, 0, 0])
    for numbers in ((0, 1, 2, 3), (0, 1, 3, 2)):
        renamed = network_of(4, [(numbers[a], numbers[b], c) for a, b, c in arcs], [2, 0, 0, 0])
        if len(layered_trees(renamed)) == 2:
            network = renamed
    trees = layered_trees(network)
    assert faults_of(network, trees) == []
    assert sorted(tree_heights(trees, network.src).tolist()) == [2, 3]


def test_layers_take_over_where_growth_is_slow_on_a_network_too_large_to_begin_with_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = "circulant:30,1,7"
    network, _ = _at_its_optimum(spec)
    asked: list[int] = []

    def layers(network: ForestNetwork, _: object = None, most_work: int = 0) -> Trees:
        asked.append(most_work)
        return layered_trees(network, most_work=most_work)

    monkeypatch.setattr(packing, "layered_trees", layers)
    monkeypatch.setattr(packing, "MOST_WORK", 0)
    trees = packing.pack_trees(network)
    assert asked[:2] == [0, MOST_LATE_WORK]
    assert faults_of(network, trees) == []
    assert height_of(network, trees) == diameter(parse_topology(spec))


def test_numbers_stay_different_and_never_change() -> None:
    # The first outputs of SplitMix64 with seed 0, whose states are multiples of its constant.
    states = np.array([1, 2, 3], dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    assert splitmix(states).tolist() == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert len(np.unique(splitmix(np.arange(10**5)))) == 10**5
