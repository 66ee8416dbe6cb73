"""Times without a plan, counted by hand."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from chorale.synth.methods.traffic.baselines import BASELINES, baseline_times
from chorale.synth.methods.traffic.matrix import traffic_matrix, zipf_matrix
from chorale.synth.methods.traffic.planner import plan_traffic
from chorale.synth.topology.spec import parse_topology


def test_a_directed_ring_leaves_no_choice_of_paths():
    amounts = np.array([[0, 5, 1], [0, 0, 2], [4, 0, 0]])  # links 0>1, 1>2, 2>0
    times = baseline_times(parse_topology("uniring:1,3"), traffic_matrix("m", amounts))
    loads = [5 + 1, 1 + 2, 4]
    assert times["direct"] == times["direct_ecmp"] == times["uniform_paths"] == max(loads)
    # Rounds to the next rank (5, 2, 4 over one link each), then to the one after it (1 over two links).
    assert times["pairwise"] == 5 + 1
    assert times["uniform_padded"] == 5 * 3  # each link carries three of the pairs


def test_even_shares_halve_what_has_two_shortest_paths():
    amounts = np.zeros((4, 4), dtype=int)
    amounts[0, 2] = 10
    times = baseline_times(parse_topology("ring:4"), traffic_matrix("m", amounts))
    assert (times["direct"], times["direct_ecmp"], times["pairwise"]) == (10, 5, 10)


@pytest.mark.parametrize("spec", ["torus:3x3", "a100:2", "mesh:2x3"])
def test_no_baseline_is_faster_than_the_bound(spec):
    topology = parse_topology(spec)
    matrix = zipf_matrix(topology.compute_count, 1.2, 1)
    bound = plan_traffic(topology, matrix).bound.time
    times = baseline_times(topology, matrix)
    assert list(times) == list(BASELINES)
    assert min(times.values()) >= bound * (1 - Fraction(1, 10**9))
    assert times["pairwise"] >= times["direct"]
