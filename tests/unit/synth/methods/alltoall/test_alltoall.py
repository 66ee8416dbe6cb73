"""All-to-all rates against the whole linear program, closed forms and published numbers."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.bounds.certificate import check_certificate
from chorale.synth.bounds.lower_bound import lower_bound
from chorale.synth.collective import ALLTOALL
from chorale.synth.errors import InvalidInput
from chorale.synth.methods.alltoall import alltoall
from chorale.synth.methods.alltoall.alltoall import (
    METHODS,
    alltoall_rate,
    approximate,
    certify,
    factors_of,
    parse_method,
)
from chorale.synth.methods.alltoall.linear_program import (
    Commodities,
    Reduction,
    commodities_of,
    reduced_problem,
)
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology
from tests.properties import random_cases
from tests.reference.full_alltoall_program import full_alltoall_rate
from tests.strategies import MIXED, networks, regular_topologies, strongly_connected_topologies


def check_bounds(topology: Topology, gap: float, method: str | None = None) -> None:
    expected = full_alltoall_rate(topology)
    rate = alltoall_rate(topology, Fraction(gap), parse_method(method))
    assert float(rate.lower) <= expected * (1 + 1e-7)
    assert float(rate.upper) >= expected * (1 - 1e-7)
    assert rate.lower <= rate.rate <= rate.upper
    assert rate.gap <= max(Fraction(gap), Fraction(1, 10**5))


@given(networks(2, 7))
@random_cases(40)
def test_no_bound_is_above_what_flows_reach(topology):
    bound = lower_bound(topology, ALLTOALL)
    assert float(bound.value) <= (1 + 1e-7) / (full_alltoall_rate(topology) * topology.compute_count)
    assert check_certificate(topology, ALLTOALL, bound.to_json(topology)) == bound.value


@pytest.mark.parametrize("spec", ["a100:2", "mi250:2", "hypercube:3", "torus:4x4", "fattree:4"])
def test_hops_and_boxes_prove_the_optimum_without_a_program(spec):
    topology = parse_topology(spec)
    assert lower_bound(topology, ALLTOALL).value == 1 / (alltoall_rate(topology).upper * topology.compute_count)


@given(networks(2, 7))
@random_cases(40)
def test_the_linear_program_agrees_with_the_whole_one(topology):
    check_bounds(topology, 1e-5, "lp")


@given(networks(2, 6))
@random_cases(20)
def test_prices_agree_with_the_whole_program(topology):
    check_bounds(topology, 0.05, "prices")


@given(strongly_connected_topologies(2, 4, switches=3, bandwidths=MIXED))
@random_cases(20)
def test_switches_pass_data_on_and_want_none(topology):
    check_bounds(topology, 1e-5)


@given(regular_topologies(max_nodes=9))
@random_cases(20)
def test_known_symmetries_change_nothing(spec):
    topology = parse_topology(spec)
    assert topology.automorphisms
    plain = reduced_problem(topology, commodities_of(topology, symmetric=False))
    without = certify(plain, approximate(plain, "lp", Fraction(1, 100), None), "lp")
    with_symmetries = alltoall_rate(topology, method="lp")
    assert without.lower == without.upper == with_symmetries.lower == with_symmetries.upper
    assert float(without.lower) == pytest.approx(full_alltoall_rate(topology), rel=1e-7)


def ring_rate(nodes: int) -> Fraction:
    """One over the load of a link when everything takes the shorter way around: N^2 / 8 paths, rounded by parity."""
    return Fraction(2 * nodes, sum(min(offset, nodes - offset) for offset in range(nodes)) * nodes)


@pytest.mark.parametrize(
    ("spec", "rate"),
    [
        *((f"ring:{nodes}", ring_rate(nodes)) for nodes in (3, 4, 7, 12, 25)),
        *((f"hypercube:{n}", Fraction(1, 2 ** (n - 1))) for n in (2, 3, 6, 10)),
        *((f"complete:{nodes}", Fraction(1)) for nodes in (2, 3, 9)),
        *((f"torus:{k}x{k}", ring_rate(k) / k) for k in (3, 4, 5, 8, 32)),
        ("torus:4x8", min(ring_rate(4) / 8, ring_rate(8) / 4)),
        ("torus:3x4x5", min(ring_rate(3) / 20, ring_rate(4) / 15, ring_rate(5) / 12)),
        *((f"uniring:1,{nodes}", Fraction(2, nodes * (nodes - 1))) for nodes in (2, 5, 16)),
        ("uniring:3,5", Fraction(3, 10)),
        *((f"bipartite:{d}", Fraction(d, 2 * (d - 1) + d)) for d in (1, 2, 3, 4)),
        # Offsets 3 and 4 reach distance 1 four times, 2 eight times, 3 three times.
        ("circulant:16,3,4", Fraction(1, 8)),
    ],
)
def test_closed_forms_are_met_exactly(spec, rate):
    found = alltoall_rate(parse_topology(spec))
    assert (found.lower, found.upper) == (rate, rate)


@pytest.mark.parametrize(
    ("spec", "printed"),
    [
        ("line(bipartite:4)", 0.0571),
        ("genkautz:4,64", 0.0217),
        ("debruijn:4,4", 0.00404),
        ("product(biring:2,8;power(uniring:1,4;2))", 0.00521),
        ("line(product(power(uniring:1,4;3);uniring:1,2))", 0.00112),
        ("power(product(uniring:1,4;uniring:1,8);2)", 0.000279),
    ],
)
def test_published_rates(spec, printed):
    rate = alltoall_rate(parse_topology(spec))
    assert float(f"{float(rate.lower):.3g}") == printed
    assert float(f"{float(rate.upper):.3g}") == printed


@pytest.mark.slow
def test_published_rate_of_a_large_unsymmetric_network():
    rate = alltoall_rate(parse_topology("genkautz:4,1024"))
    assert rate.method == "prices"
    assert rate.gap <= Fraction(1, 200)
    assert float(rate.lower) <= 8.01e-4 + 5e-7
    assert float(rate.upper) >= 8.01e-4 - 5e-7


@pytest.mark.slow
def test_a_published_rate_that_no_flow_can_reach():
    """The paper prints 8.12e-4; prices prove that 7.9e-4 is out of reach."""
    rate = alltoall_rate(parse_topology("line(circulant:16,3,4;3)"), gap=Fraction(1, 20))
    assert rate.upper < Fraction("7.9e-4")
    assert rate.lower > Fraction("7.4e-4")


@pytest.mark.parametrize(
    "spec",
    [
        "product(mesh:2x3;uniring:1,3)",
        "power(diamond;2)",
        "product(genkautz:2,5;ring:4)",
        "product(ring:3;product(mesh:2x2;uniring:2,3))",
        "product(scaled(ring:4;link=0-1;factor=1/3);uniring:1,3)",
    ],
)
def test_rates_of_products_follow_from_their_factors(spec):
    topology = parse_topology(spec)
    assert factors_of(topology)
    reduction = reduced_problem(topology, commodities_of(topology))
    whole = certify(reduction, approximate(reduction, "lp", Fraction(0), None), "lp")
    assert alltoall_rate(topology) == whole
    assert whole.gap == 0


def test_a_network_that_only_claims_to_be_a_product_is_not_taken_for_one():
    ring = parse_topology("ring:6")
    liar = replace(ring, spec="product(ring:3;complete:2)")
    unbuildable = ("My network", "product(mesh:1x2;ring:3)", "power(file:ring.json;2)", "power(ring:3;0)")
    for claim in (liar, ring, *(replace(ring, spec=spec) for spec in unbuildable)):
        assert factors_of(claim) == []
    assert alltoall_rate(liar) == alltoall_rate(ring)
    assert len(factors_of(parse_topology("power(uniring:1,3;4)"))) == 4


@given(networks(2, 6), st.integers(0, 2**32 - 1))
@random_cases(30)
def test_bounds_hold_whatever_the_solver_says(topology, seed):
    reduction = reduced_problem(topology, commodities_of(topology))
    noise = np.random.default_rng(seed)
    answer = approximate(reduction, "lp", Fraction(1, 100), None)
    wrong = answer._replace(
        class_flow=noise.normal(size=answer.class_flow.shape), prices=noise.normal(size=answer.prices.shape)
    )
    true, bounds = certify(reduction, answer, "lp"), certify(reduction, wrong, "lp")
    assert bounds.lower <= true.upper
    assert bounds.upper >= true.lower
    assert bounds.lower > 0


def test_small_problems_go_to_the_solver_and_large_ones_do_not():
    assert alltoall_rate(parse_topology("mesh:3x4")).method == "lp"
    assert alltoall_rate(parse_topology("genkautz:3,500"), gap=Fraction(1, 10)).method == "prices"


def test_symmetries_that_are_searched_change_no_bound(monkeypatch):
    topology = parse_topology("genkautz:4,64")
    without = alltoall_rate(topology, method="lp")
    sources = []

    def noted(network: Topology, problem: Commodities) -> Reduction:
        sources.append(len(problem.sources))
        return reduced_problem(network, problem)

    monkeypatch.setattr(alltoall, "MIN_SEARCHED_CELLS", 0)
    monkeypatch.setattr(alltoall, "reduced_problem", noted)
    searched = alltoall_rate(topology, method="lp")
    assert sources[0] < 16  # 24 symmetries
    assert searched.lower <= without.upper
    assert without.lower <= searched.upper
    assert searched.gap < Fraction(1, 10**5)


def test_the_report_hears_bounds_that_close_in():
    heard = []
    rate = alltoall_rate(
        parse_topology("genkautz:2,30"), Fraction(1, 100), "prices", lambda lower, upper: heard.append((lower, upper))
    )
    assert len(heard) > 1
    assert all(lower <= upper for lower, upper in heard)
    assert heard == sorted(heard, key=lambda bounds: (bounds[0], -bounds[1]))
    assert heard[-1][1] <= heard[-1][0] * (1 + Fraction(1, 100))
    assert rate.gap <= Fraction(1, 100)


def test_refusals():
    with pytest.raises(InvalidInput, match="must not be negative, got -1"):
        alltoall_rate(parse_topology("ring:3"), gap=Fraction(-1))
    with pytest.raises(InvalidInput, match="unknown all-to-all method 'simplex'; choose from lp, prices"):
        parse_method("simplex")
    with pytest.raises(InvalidInput, match=r"9999 sources x 39992 links in without.*; choose a smaller"):
        commodities_of(parse_topology("without(torus:100x100;node=0)"))
    assert [parse_method(method) for method in (*METHODS, None)] == [*METHODS, None]
