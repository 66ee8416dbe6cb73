"""A schedule of a network is one of the same network under other names."""

import numpy as np
import pytest

from chorale.synth.collective import parse_collective
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.methods.catalog import synthesize
from chorale.synth.schedule.transforms import renamed_schedule
from chorale.synth.topology.links import Links
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology
from chorale.synth.verify.verify import verify

CASES = [
    ("bfb", "torus:3x3", "allreduce"),
    ("forest", "a100:2", "allgather"),
    ("forest", "a100:2", "allreduce"),
    ("forest", "mi250half:2", "broadcast"),
    ("forest", "a100:2", "reduce"),
    ("double-binary-tree", "ring:6", "allreduce"),
]


@pytest.mark.parametrize(("method", "spec", "collective"), CASES)
def test_costs_and_results_stay(method, spec, collective):
    network = parse_topology(spec)
    schedule = synthesize(method, network, parse_collective(collective, 1), None, SerialExecutor()).schedule
    rng, ranks = np.random.default_rng(3), network.compute_count
    new_node = np.concatenate([rng.permutation(ranks), ranks + rng.permutation(network.switch_count)])
    links = [link._replace(src=int(new_node[link.src]), dst=int(new_node[link.dst])) for link in network.links]
    other = Topology("other", network.node_ids, ranks, Links.build(links), network.bandwidth_unit)
    moved = renamed_schedule(schedule, new_node, other)
    assert verify(moved).cost == verify(schedule).cost
    assert moved.id != schedule.id
    back = renamed_schedule(moved, np.argsort(new_node), network)
    assert back.id == schedule.id
