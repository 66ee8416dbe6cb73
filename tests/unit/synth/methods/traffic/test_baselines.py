"""Times without a plan, counted by hand."""

from fractions import Fraction

import numpy as np
import pytest

from chorale.synth.methods.traffic.matrix import TrafficMatrix, traffic_matrix
from chorale.synth.methods.traffic.plan import traffic_schedule
from chorale.synth.methods.traffic.planner import baseline_times, plan_traffic
from chorale.synth.topology.spec import parse_topology
from chorale.synth.verify.verify import verify


def test_a_directed_ring_leaves_no_choice_of_paths():
    amounts = np.array([[0, 5, 1], [0, 0, 2], [4, 0, 0]])  # links 0>1, 1>2, 2>0
    times = baseline_times(plan_traffic(parse_topology("uniring:1,3"), traffic_matrix("m", amounts)))
    loads = [5 + 1, 1 + 2, 4]
    assert times["direct"] == times["direct_ecmp"] == times["uniform_paths"] == max(loads)
    # Rounds to the next rank (5, 2, 4 over one link each), then to the one after it (1 over two links).
    assert times["pairwise"] == 5 + 1
    assert times["uniform_padded"] == 5 * 3  # each link carries three of the pairs


def test_even_shares_halve_what_has_two_shortest_paths():
    amounts = np.zeros((4, 4), dtype=int)
    amounts[0, 2] = 10
    times = baseline_times(plan_traffic(parse_topology("ring:4"), traffic_matrix("m", amounts)))
    assert (times["direct"], times["direct_ecmp"], times["pairwise"]) == (10, 5, 10)


def hot_receiver(ranks: int = 16) -> TrafficMatrix:
    """Return what all ranks of the first box send to the first rank of the second."""
    amounts = np.zeros((ranks, ranks), dtype=int)
    amounts[:8, 8] = 1000
    return traffic_matrix("hot", amounts)


def test_a_hot_receiver_over_the_rails_of_two_boxes():
    """A NIC of 50 carries 8 x 1000 in 160 over the receiver's rail; over those of the senders each 1000 in 20."""
    times = baseline_times(plan := plan_traffic(parse_topology("h100:2"), hot_receiver()))
    assert (plan.time, times["sender_rail"], times["receiver_rail"]) == (20, 20, 160)
    # The second phase of the exchange, from the 7 ranks that relay, is inside the box, at 450.
    assert times["two_level"] == 20 + Fraction(7000, 450)


@pytest.mark.parametrize("spec", ["h100:2", "a100:3", "mi300x:2", "railclos:3,4,25,2", "without(h100:2;node=3)"])
@pytest.mark.parametrize("chunks", [None, 1])
def test_plans_are_never_slower_than_rails(spec, chunks):
    """Also with amounts that no common chunk divides, and with chunks so few that rounding costs something."""
    topology = parse_topology(spec)
    amounts = np.random.default_rng(3).integers(0, 10**6, (topology.compute_count,) * 2)
    plan = plan_traffic(topology, traffic_matrix("random", amounts), chunks=chunks)
    times = baseline_times(plan)
    assert plan.time <= min(times[name] for name in ("sender_rail", "receiver_rail", "two_level"))
    assert verify(traffic_schedule(plan)).cost.time_per_byte > 0
