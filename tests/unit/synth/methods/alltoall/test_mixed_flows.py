"""Mixtures of flows: the largest load against the whole linear program and all pairs, exact loads by hand."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from chorale.synth.methods.alltoall import price_descent
from chorale.synth.methods.alltoall.linear_program import commodities_of
from chorale.synth.methods.alltoall.price_descent import MixedFlows, PricedFlows, best_mixture
from chorale.synth.topology.spec import parse_topology
from tests.properties import random_cases
from tests.strategies import networks
from tests.unit.synth.methods.alltoall.flows import assert_all_arrives


@random_cases(30)
@given(st.integers(1, 40), st.integers(1, 8), st.integers(0, 2**32 - 1))
def test_rows_told_in_rounds_give_the_optimum_of_the_whole_program(links, count, seed):
    times = np.random.default_rng(seed).uniform(0.0, 2.0, (links, count))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(price_descent, "_ROWS_AT_ONCE", 3)
        weights, duals = price_descent._least_maximum(times)
    whole = linprog(
        np.append(np.zeros(count), 1.0), np.column_stack([times, -np.ones(links)]), np.zeros(links),
        np.append(np.ones(count), 0.0)[np.newaxis], [1.0],
    )  # fmt: skip
    assert weights.sum() == pytest.approx(1.0)
    assert (times @ weights).max() == pytest.approx(whole.fun, rel=1e-6)
    assert (duals @ times).min() / duals.sum() == pytest.approx(whole.fun, rel=1e-5)  # no mixture is below its duals


@random_cases(15)
@given(networks(2, 6), st.integers(0, 2**32 - 1))
def test_rates_are_those_of_the_flows_taken_apart(topology, seed):
    problem = commodities_of(topology, symmetric=False)
    prices = np.random.default_rng(seed).uniform(0.1, 2.0, (3, len(problem.class_size)))
    flows = tuple(PricedFlows(problem, row, 0.2) for row in prices)
    mixed = MixedFlows(flows, (1, 2, 5), tuple(one.loads() for one in flows))
    units = mixed.loads[0].units
    longest = Fraction(0)
    whole = [np.rint(one.of_sources() * units).astype(int) for one in flows]
    for link, group in enumerate(problem.link_class.tolist()):
        load = sum(part * int(of_one[:, link].sum()) for part, of_one in zip(mixed.parts, whole, strict=True))
        capacity = Fraction(int(problem.class_capacity[group]), problem.scale)
        longest = max(longest, load / (8 * units * capacity))
    assert mixed.rate() == 1 / longest
    assert_all_arrives(problem, mixed.of_sources())


def test_two_ways_around_a_ring_are_mixed_half_and_half():
    problem = commodities_of(parse_topology("ring:4"), symmetric=False)
    clockwise = (problem.dst - problem.src) % 4 == 1
    passes, times, rates = [], [], []
    for cheap in (clockwise, ~clockwise):
        flows = PricedFlows(problem, np.where(cheap, 0.95, 1.05), 1e-3)
        loads = flows.loads()
        passes.append((flows, loads))
        times.append(loads.whole / loads.units / problem.class_capacity)
        rates.append(MixedFlows((flows,), (1,), (loads,)).rate())
    mixed, rate, _ = best_mixture(passes, np.stack(times, axis=1))
    assert rates == [Fraction(1, 3)] * 2  # all data for the node opposite goes the same way
    assert mixed.parts[0] == mixed.parts[1]
    assert mixed.rate() == Fraction(1, 2)
    assert rate == pytest.approx(0.5)
