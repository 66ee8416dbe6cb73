"""Double binary trees: all sizes, balanced, shallow."""

from fractions import Fraction

import numpy as np
import pytest

from chorale.synth.collective import ALLGATHER, ALLREDUCE, Collective, CollectiveName
from chorale.synth.errors import InvalidInput
from chorale.synth.methods.closed_forms import double_binary_tree, tree_depths
from chorale.synth.topology.families.grids import double_tree_parents
from chorale.synth.topology.spec import parse_topology
from tests.patterns import verified_with_traffic
from tests.shapes import torus_specs


@pytest.mark.parametrize("nodes", range(2, 34))
def test_all_sizes(nodes):
    topology = parse_topology(f"dbt:{nodes}")
    height = max(int(tree_depths(parent).max()) for parent in double_tree_parents(nodes))
    verified = verified_with_traffic(double_binary_tree(topology, ALLREDUCE))
    assert verified.schedule.kind == "pipelined"
    assert verified.schedule.steps == 2 * height <= 2 * nodes.bit_length()
    # Half of the vector each way on the links of a tree; where both trees use a link, all of it.
    assert verified.cost.time_per_byte <= 1
    for name in (CollectiveName.BROADCAST, CollectiveName.REDUCE):
        verified = verified_with_traffic(double_binary_tree(topology, Collective(name, nodes // 2)))
        assert verified.schedule.steps <= height + 1


@pytest.mark.parametrize("nodes", [4, 9, 16, 24, 35, 48, 64])
def test_other_networks(nodes):
    for spec in torus_specs(nodes):
        verified_with_traffic(double_binary_tree(parse_topology(spec), ALLREDUCE))


@pytest.mark.parametrize("nodes", range(2, 40))
def test_no_rank_is_inner_in_both_trees(nodes):
    inner = [set(parent[parent >= 0].tolist()) - {int(np.argmin(parent))} for parent in double_tree_parents(nodes)]
    assert not inner[0] & inner[1]
    children = [np.bincount(parent[parent >= 0], minlength=nodes).max() for parent in double_tree_parents(nodes)]
    assert max(children) <= 2


def test_every_rank_sends_and_receives_no_more_than_a_vector_each_way():
    verified = verified_with_traffic(double_binary_tree(parse_topology("dbt:32"), ALLREDUCE))
    schedule = verified.schedule
    received = np.zeros(32, dtype=np.int64)
    np.add.at(received, schedule.dst, (schedule.transfers.hi - schedule.transfers.lo).astype(np.int64))
    # Inner in one tree: 2 children up and one parent down; leaf in the other: one parent down.
    assert Fraction(int(received.max()), schedule.chunks_per_shard * 32) == 2


def test_depths():
    assert tree_depths(np.array([-1, 0, 1, 1, 0])).tolist() == [0, 1, 2, 2, 1]


def test_allgather_is_refused():
    with pytest.raises(InvalidInput, match="double-binary-tree makes allreduce"):
        double_binary_tree(parse_topology("dbt:4"), ALLGATHER)
