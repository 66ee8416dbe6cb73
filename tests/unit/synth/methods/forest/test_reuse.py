"""Trees of an older schedule, kept as far as they hold."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.bounds.optimum import fixed_k_optimum, optimum
from chorale.synth.collective import ALLGATHER, ALLREDUCE, REDUCE_SCATTER, Collective, CollectiveName
from chorale.synth.errors import InvalidInput
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.methods.catalog import synthesize, synthesize_unverified
from chorale.synth.methods.forest.network import forest_network
from chorale.synth.methods.forest.split.switch_removal import remove_switches
from chorale.synth.methods.forest.warm_start import reused_trees
from chorale.synth.methods.method import Options
from chorale.synth.schedule.schedule import Schedule
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology
from tests.properties import random_cases
from tests.random_fabrics import random_fabric

SERIAL = SerialExecutor()


def trees_kept(old: Schedule, topology: Topology, k: int | None = None):
    """Return the logical network of `topology` and the old trees that fit into it."""
    best = optimum(topology, ALLGATHER) if k is None else fixed_k_optimum(topology, ALLGATHER, k)
    supply = np.full(topology.compute_count, best.k, dtype=np.int64)
    network = remove_switches(forest_network(topology, best.trees_per_bandwidth, supply)).network
    return network, reused_trees(old, topology, network)


def made(spec: str | Topology, collective: Collective = ALLGATHER, **options) -> Schedule:
    topology = parse_topology(spec) if isinstance(spec, str) else spec
    return synthesize(options.pop("method", "forest"), topology, collective, Options(**options), SERIAL).schedule


@random_cases(60)
@given(st.integers(0, 10**6), st.integers(1, 3), st.integers(1, 4))
def test_kept_trees_span_and_fit(seed, old_k, k):
    topology = random_fabric(2 * seed + 1)
    network, trees = trees_kept(made(topology, k=old_k), topology, k)
    load = np.zeros(len(network.src), dtype=np.int64)
    for root, weight, parent_arc in zip(trees.root, trees.weight, trees.parent_arc, strict=True):
        reached = {int(root)}
        assert parent_arc[root] == -1
        while len(reached) < network.nodes:
            grown = {
                v for v in range(network.nodes) if parent_arc[v] >= 0 and int(network.src[parent_arc[v]]) in reached
            }
            assert not grown <= reached
            reached |= grown
        np.add.at(load, parent_arc[parent_arc >= 0], weight)
    assert (load <= network.capacity).all()
    assert all(trees.weight[trees.root == root].sum() <= k for root in range(network.nodes))


def test_an_unchanged_fabric_keeps_all_trees():
    old = made("mi250:2")
    _, trees = trees_kept(old, old.topology)
    assert trees.weight.sum() == 32 * 83
    assert made("mi250:2", warm_start=old).transfers.columns[0].shape == old.transfers.columns[0].shape


@random_cases(30)
@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_a_warm_start_costs_no_time(seed, other):
    """Whatever it starts from, a schedule for the same k is as fast as one from nothing."""
    topology, old = random_fabric(2 * seed + 1), random_fabric(2 * other + 1)
    warm = synthesize("forest", topology, ALLGATHER, Options(k=2, warm_start=made(old, k=2)), SERIAL)
    assert warm.cost.time_per_byte <= fixed_k_optimum(topology, ALLGATHER, 2).time_per_byte


@pytest.mark.parametrize("collective", [ALLGATHER, REDUCE_SCATTER])
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("a100:2", "without(a100:2;node=3)"),  # 13 trees per root before, 7 afterwards
        ("a100:4", "without(a100:4;node=3)"),  # 1 before, 7 afterwards
        ("ring:6", "without(ring:6;link=0-1)"),
    ],
)
def test_a_warm_start_is_as_fast_as_a_schedule_from_nothing(old, new, collective):
    old_schedule, topology = made(old, collective), parse_topology(new)
    cold = synthesize("forest", topology, collective, Options(), SERIAL)
    warm = synthesize("forest", topology, collective, Options(warm_start=old_schedule), SERIAL)
    both = synthesize("forest", topology, ALLREDUCE, Options(warm_start=old_schedule), SERIAL)
    assert warm.cost.time_per_byte == cold.cost.time_per_byte
    assert both.cost.time_per_byte == 2 * cold.cost.time_per_byte


def test_a_warm_start_keeps_the_number_of_trees_where_it_is_as_fast():
    old = made("torus:4x4", k=4)
    assert made("without(torus:4x4;link=0-1)", warm_start=old).trees_per_root == 4


def test_other_schedules_are_refused():
    for old in (made("ring:4", method="bfb"), made("ring:4", Collective(CollectiveName.BROADCAST, 0))):
        with pytest.raises(
            InvalidInput,
            match="a warm start needs trees for an allgather, a reduce_scatter or an allreduce of two phases, not",
        ):
            synthesize_unverified("forest", parse_topology("ring:4"), ALLGATHER, Options(warm_start=old), SERIAL)


def test_pairs_of_trees_are_refused_since_their_roots_own_other_parts_than_shards():
    with pytest.raises(InvalidInput, match="a pipelined allreduce of one phase"):
        made("mesh:2x3", ALLREDUCE, warm_start=made("mesh:2x3", ALLREDUCE))
