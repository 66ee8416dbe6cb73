"""Closed-form plans over boxes with rails: against a linear program, the loads of links, and what libraries do."""

from fractions import Fraction

import numpy as np
import pytest

from chorale.synth.kernels import native
from chorale.synth.methods.traffic.certificate import check_traffic_certificate
from chorale.synth.methods.traffic.fabric import rail_fabric
from chorale.synth.methods.traffic.matrix import ChunkCounts, exact_counts, traffic_matrix, zipf_matrix
from chorale.synth.methods.traffic.plan import certificate_of, traffic_schedule
from chorale.synth.methods.traffic.planner import LIBRARY, baseline_times, plan_traffic
from chorale.synth.methods.traffic.two_level import plan_rails
from chorale.synth.topology.spec import parse_topology
from chorale.synth.verify.verify import verify
from tests.random_fabrics import random_fabric

SPECS = [
    "h100:2",
    "h100:3",
    "a100:2",
    "mi300x:2",
    "mi300x:1",
    "a100:1",
    "railclos:3,4,25,2",
    "scaled(h100:2;link=0.3-nic:0.3;factor=1/2)",
]


def random_amounts(ranks, seed):
    """Return amounts with a skew of any kind: of senders, of receivers, of pairs, with holes or within boxes."""
    random = np.random.default_rng(seed)
    amounts = random.lognormal(0, random.uniform(0, 2.5), (ranks, ranks)) * 10 ** random.uniform(0, 5)
    if seed % 3 == 0:
        amounts[:, random.integers(ranks)] *= 50
    if seed % 5 == 0:
        amounts[random.integers(ranks)] *= 50
    if seed % 4 == 0:
        amounts[random.random((ranks, ranks)) < 0.7] = 0
    whole = amounts.astype(np.int64)
    whole[0, 1] += 1
    return traffic_matrix(f"seed {seed}", whole)


@pytest.mark.parametrize("spec", SPECS)
def test_plans_hold_what_they_say_and_libraries_are_no_faster(spec):
    topology = parse_topology(spec)
    fabric = rail_fabric(topology)
    for seed in range(6):
        matrix = random_amounts(topology.compute_count, seed)
        plan = plan_rails(fabric, matrix, exact_counts(matrix))
        schedule = traffic_schedule(plan)
        assert verify(schedule).cost.time_per_byte / schedule.chunk_part * plan.chunks.chunk == plan.time
        assert check_traffic_certificate(topology, certificate_of(plan)) == plan.bound.time > 0
        times = baseline_times(plan)
        assert plan.bound.time <= plan.time <= min(times[name] for name in LIBRARY)


@pytest.mark.parametrize("spec", SPECS)
def test_direct_and_rails_take_as_long_as_by_the_loads_of_links(spec):
    topology = parse_topology(spec)
    matrix, fabric = random_amounts(topology.compute_count, 7), rail_fabric(topology)
    times = baseline_times(plan_rails(fabric, matrix, ChunkCounts(matrix.amounts, Fraction(1))))
    for name, relays in fabric.usual.items():
        loads = fabric.no_loads()
        native.add_relayed_loads(matrix.amounts, *relays, loads)
        assert fabric.time(loads) == times[name]


@pytest.mark.parametrize(
    ("spec", "exponent"), [("h100:8", 0.8), ("h100:8", 1.5), ("nvl72:2", 1.2), ("b200:4", 1.0), ("mi300x:8", 1.5)]
)
def test_skews_of_experts_are_within_half_a_percent(spec, exponent):
    topology = parse_topology(spec)
    for matrix in (zipf_matrix(topology.compute_count, exponent, 1), zipf_matrix(topology.compute_count, exponent, 2)):
        for way in (matrix, matrix.transposed()):
            plan = plan_rails(rail_fabric(topology), way, exact_counts(way))
            assert 0 <= plan.gap < Fraction(1, 200)


@pytest.mark.parametrize(
    "spec", ["torus:4x4", "ring:8", "mi250:2", "fattree:4", "dragonfly:2,1,1", "without(h100:2;node=3)"]
)
def test_other_networks_are_no_boxes_with_rails(spec):
    assert rail_fabric(parse_topology(spec)) is None


@pytest.mark.parametrize("seed", [23, 37, 155, 231, 382])
def test_a_box_with_other_ways_out_of_ranks_is_none(seed):
    """Here a box was seen in a network with more links than a box has: bounds and direct paths were those of less."""
    topology = random_fabric(seed)
    matrix = random_amounts(topology.compute_count, seed)
    plan = plan_traffic(topology, matrix)
    assert check_traffic_certificate(topology, certificate_of(plan)) <= plan.time <= baseline_times(plan)["direct"]


def test_the_layout_of_an_array_in_memory_does_not_matter() -> None:
    import chorale  # noqa: PLC0415 - the public function, which nothing else here needs

    amounts = np.arange(16 * 16, dtype=np.int64).reshape(16, 16)
    assert chorale.plan_alltoall("h100:2", amounts.T).time == chorale.plan_alltoall("h100:2", amounts.T.copy()).time
