import hashlib
import subprocess
import sys
from dataclasses import replace
from random import Random
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.bounds.residual_graph import LARGEST_AMOUNT
from chorale.synth.errors import CheckFailed, InvalidInput
from chorale.synth.methods.forest.network import ForestNetwork, Trees
from chorale.synth.methods.forest.packing import ROLLBACKS, pack_trees
from chorale.synth.methods.method import Objective
from tests.forest_networks import boxes, can_be_packed, network_of, random_arcs, random_supply, tight_network, torus
from tests.properties import random_cases
from tests.reference.crossing_cuts import Arc
from tests.reference.packed_trees import faults_of, height_of

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


@pytest.mark.parametrize("block", range(5))
def test_random_tight_networks_are_packed_and_others_refused(block: int) -> None:
    for seed in range(50 * block, 50 * block + 50):
        network = tight_network(Random(seed))
        for rollbacks in (ROLLBACKS, 0):
            _assert_packed_or_refused(*network, rollbacks, seed)


@random_cases(100)
@given(st.randoms(use_true_random=False), st.integers(1, 6), st.sampled_from([0, 1, ROLLBACKS]))
def test_any_network_is_packed_or_refused(random: Random, nodes: int, rollbacks: int) -> None:
    arcs = random_arcs(random, nodes) if nodes > 1 else []
    _assert_packed_or_refused(nodes, arcs, random_supply(random, nodes), rollbacks, random.randrange(9))


def test_boxes_are_crossed_in_two_hops() -> None:
    network = boxes(8, 4, 12, 1)
    trees = pack_trees(network)
    assert faults_of(network, trees) == []
    assert (len(trees), height_of(network, trees)) == (32, 2)
    assert trees.root.tolist() == list(range(32))


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


def test_one_root_is_packed_with_all_its_weight() -> None:
    network = replace(boxes(3, 4, 9, 2), supply=np.array([16] + [0] * 11))
    assert faults_of(network, pack_trees(network)) == []
    with pytest.raises(CheckFailed, match="more trees start in a set of nodes than can leave it: 1"):
        pack_trees(replace(network, supply=np.array([17] + [0] * 11)))


def test_heavy_trees_are_not_split_into_units() -> None:
    network = network_of(3, [(a, b, 10**9) for a in range(3) for b in range(3)], [10**9] * 3)
    trees = pack_trees(network)
    assert faults_of(network, trees) == []
    assert len(trees) <= 9


def test_no_supply_needs_no_trees() -> None:
    network = network_of(3, [(0, 1, 1)], [0, 0, 0])
    assert pack_trees(network).parent_arc.shape == (0, 3)
    alone = pack_trees(network_of(1, [], [5]))
    assert alone.weight.tolist() == [5]
    assert alone.parent_arc.tolist() == [[-1]]


def test_switches_and_huge_amounts_are_refused() -> None:
    network = network_of(3, [(0, 1, 1), (1, 2, 1)], [0, 0, 0])
    with pytest.raises(InvalidInput, match="trees cannot be packed into a network with switches"):
        pack_trees(ForestNetwork(2, 3, network.src, network.dst, network.capacity, network.supply))
    with pytest.raises(InvalidInput, match="choose a smaller k"):
        pack_trees(replace(network, capacity=network.capacity * (LARGEST_AMOUNT // 2)))


def test_the_same_trees_in_every_process() -> None:
    program = (
        "from tests.forest_networks import torus\n"
        "from chorale.synth.methods.forest.packing import pack_trees\n"
        "from tests.unit.synth.methods.forest.test_packing import _digest\n"
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
