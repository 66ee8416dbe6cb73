"""Trees of one root of a hypercube: edge-disjoint, of height d + 1, and only where the network is a hypercube."""

from random import Random

import numpy as np
import pytest

from chorale.synth.collective import parse_collective
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.methods.catalog import synthesize
from chorale.synth.methods.forest.hypercube_trees import hypercube_trees
from chorale.synth.methods.forest.network import ForestNetwork, tree_heights
from chorale.synth.methods.method import Options
from chorale.synth.topology.spec import parse_topology
from tests.forest_networks import network_of
from tests.reference.packed_trees import faults_of

SERIAL = SerialExecutor()


def hypercube(dimensions: int, capacity: int, supply: int, seed: int = 0) -> ForestNetwork:
    """Return a hypercube whose nodes have other names, with `supply` at one of them."""
    nodes, random = 2**dimensions, Random(seed)
    names = random.sample(range(nodes), nodes)
    arcs = [(names[x], names[x ^ 1 << bit], capacity) for x in range(nodes) for bit in range(dimensions)]
    root = random.randrange(nodes)
    return network_of(nodes, arcs, [supply * (node == root) for node in range(nodes)])


@pytest.mark.parametrize("dimensions", range(1, 8))
@pytest.mark.parametrize("seed", range(3))
def test_as_many_trees_as_dimensions_use_every_arc_but_those_into_the_root(dimensions: int, seed: int) -> None:
    network = hypercube(dimensions, 3, 3 * dimensions, seed)
    trees = hypercube_trees(network)
    assert trees is not None
    assert faults_of(network, trees) == []
    assert trees.weight.tolist() == [3] * dimensions
    used = np.sort(trees.parent_arc[trees.parent_arc >= 0])
    assert used.tolist() == np.flatnonzero(network.dst != trees.root[0]).tolist()
    assert max(tree_heights(trees, network.src)) == (dimensions + 1 if dimensions > 1 else 1)


def circulant(nodes: int, *distances: int) -> list[tuple[int, int, int]]:
    pairs = {(x, (x + way) % nodes) for x in range(nodes) for distance in distances for way in (distance, -distance)}
    return [(src, dst, 1) for src, dst in sorted(pairs)]


def test_one_arc_that_ends_elsewhere_makes_it_another_network() -> None:
    whole = hypercube(4, 1, 4)
    pairs = set(zip(whole.src.tolist(), whole.dst.tolist(), strict=True))
    for src, dst in pairs:
        elsewhere = next(node for node in range(16) if node != src and (src, node) not in pairs)
        changed = [(*pair, 1) for pair in pairs - {(src, dst)} | {(src, elsewhere)}]
        assert hypercube_trees(network_of(16, changed, whole.supply.tolist())) is None


def test_one_tree_alone_is_lower() -> None:
    assert hypercube_trees(hypercube(4, 1, 1)) is None
    options = Options(k=1)
    verified = synthesize("forest", parse_topology("hypercube:4"), parse_collective("broadcast"), options, SERIAL)
    assert verified.schedule.steps == 4


def test_narrow_arcs_and_several_roots_are_left_to_packing() -> None:
    assert hypercube_trees(hypercube(3, 1, 4)) is None
    assert hypercube_trees(network_of(4, circulant(4, 1), [1, 1, 0, 0])) is None


@pytest.mark.parametrize("spec", ["hypercube:6", "torus:4x4", "mesh:2x2x2"])
@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
def test_schedules_are_verified_optimal_and_low(spec: str, collective: str) -> None:
    topology = parse_topology(spec)
    verified = synthesize("forest", topology, parse_collective(collective, 5), None, SERIAL)
    dimensions = topology.compute_count.bit_length() - 1
    assert verified.schedule.steps == dimensions + 1
    assert verified.schedule.trees_per_root == dimensions
