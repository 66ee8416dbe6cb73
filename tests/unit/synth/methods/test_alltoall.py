"""All-to-all rates against the whole linear program, closed forms and published numbers; flows by prices."""

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
from chorale.synth.methods.alltoall.linear_program import Commodities, Reduction, commodities_of, reduced_problem
from chorale.synth.methods.alltoall.price_descent import Floats, PricedFlows, priced_solution
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Link, Links, Topology
from tests.properties import random_cases
from tests.reference.full_alltoall_program import full_alltoall_rate
from tests.strategies import MIXED, networks, regular_topologies, strongly_connected_topologies


def assert_all_arrives(problem: Commodities, by_source: Floats) -> None:
    """Assert that the flows of each source, float64[K, links], take to every node what it needs, and no more."""
    for source, flow in zip(problem.sources, by_source, strict=True):
        arrived = np.bincount(problem.dst, weights=flow, minlength=problem.node_count)
        left = np.bincount(problem.src, weights=flow, minlength=problem.node_count)
        needed = problem.demand[0].astype(float)
        needed[source] -= needed.sum()
        assert np.allclose(arrived - left, needed)


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


@given(
    st.one_of(networks(2, 6), strongly_connected_topologies(2, 4, switches=3, bandwidths=MIXED)),
    st.sampled_from([(1e-5, "lp"), (0.05, "prices"), (1e-5, None)]),
)
@random_cases(60)
def test_bounds_enclose_the_optimum_of_the_whole_program(topology, choice):
    """Switches pass data on and want none."""
    expected = full_alltoall_rate(topology)
    gap, method = choice
    rate = alltoall_rate(topology, Fraction(gap), parse_method(method))
    assert float(rate.lower) <= expected * (1 + 1e-7)
    assert float(rate.upper) >= expected * (1 - 1e-7)
    assert rate.lower <= rate.rate <= rate.upper
    assert rate.gap <= max(Fraction(gap), Fraction(1, 10**5))


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
        *((f"ring:{nodes}", ring_rate(nodes)) for nodes in (3, 12, 25)),
        *((f"hypercube:{n}", Fraction(1, 2 ** (n - 1))) for n in (3, 10)),
        ("complete:2", Fraction(1)),
        *((f"torus:{k}x{k}", ring_rate(k) / k) for k in (4, 5, 32)),
        ("torus:4x8", min(ring_rate(4) / 8, ring_rate(8) / 4)),
        ("torus:3x4x5", min(ring_rate(3) / 20, ring_rate(4) / 15, ring_rate(5) / 12)),
        ("uniring:1,16", Fraction(1, 120)),
        ("uniring:3,5", Fraction(3, 10)),
        *((f"bipartite:{d}", Fraction(d, 2 * (d - 1) + d)) for d in (1, 4)),
        # Offsets 3 and 4 reach distance 1 four times, 2 eight times, 3 three times.
        ("circulant:16,3,4", Fraction(1, 8)),
    ],
)
def test_closed_forms_are_met_exactly(spec, rate):
    found = alltoall_rate(parse_topology(spec))
    assert (found.lower, found.upper) == (rate, rate)


@pytest.mark.parametrize(
    "spec",
    [
        "power(diamond;2)",
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


def test_symmetries_are_used_as_far_as_they_hold():
    turn = (np.array([1, 2, 0], dtype=np.int32),)
    # Orbits of parallel links of different bandwidth stay apart.
    links = [Link(u, (u + 1) % 3, Fraction(bandwidth)) for u in range(3) for bandwidth in (1, 2)]
    problem = commodities_of(Topology("test", ("0", "1", "2"), 3, Links.build(links), automorphisms=turn))
    assert (problem.sources.tolist(), problem.class_size.tolist()) == ([0], [3, 3])
    assert sorted(problem.class_capacity.tolist()) == [1, 2]
    # A false symmetry is not used.
    links = [Link(0, 1), Link(1, 2), Link(2, 0), Link(0, 2)]
    problem = commodities_of(Topology("test", ("0", "1", "2"), 3, Links.build(links), automorphisms=turn))
    assert len(problem.sources) == 3
    # A path of three nodes, mirrored: the ends are alike, the middle is not.
    links, mirror = [Link(0, 1), Link(1, 0), Link(1, 2), Link(2, 1)], (np.array([2, 1, 0], dtype=np.int32),)
    problem = commodities_of(Topology("test", ("0", "1", "2"), 3, Links.build(links), automorphisms=mirror))
    assert (problem.sources.tolist(), problem.weights.tolist()) == ([0, 1], [2, 1])
    assert problem.class_size.tolist() == [2, 2]


@pytest.mark.parametrize(
    ("spec", "rows", "columns"),
    [
        ("hypercube:5", 6, 10),  # distances 0 to 5, and links up or down between them
        ("complete:6", 2, 3),
        ("bipartite:3", 3, 4),
    ],
)
def test_classes_of_distance_transitive_networks(spec, rows, columns):
    topology = parse_topology(spec)
    for symmetric in (True, False):  # classes of the network without its symmetries are as few
        reduction = reduced_problem(topology, commodities_of(topology, symmetric))
        assert len(reduction.small.sources) == 1
        assert reduction.small.weights.tolist() == [topology.compute_count]
        assert len(reduction.small.class_size) == 1
        assert (reduction.row_count, reduction.column_count) == (rows, columns)


@random_cases(20)
@given(networks(2, 6), st.integers(0, 2**32 - 1))
def test_whole_flows_load_links_as_the_flows_do_and_bring_all(topology, seed):
    problem = commodities_of(topology, symmetric=False)
    prices = np.random.default_rng(seed).uniform(0.1, 2.0, len(problem.class_size))
    flows = PricedFlows(problem, prices, 0.2)
    by_source = flows.of_sources()
    assert_all_arrives(problem, by_source)
    loads = flows.loads()
    assert np.array_equal(loads.whole, np.rint(problem.weights @ by_source * loads.units))
    assert loads.smooth <= loads.paid + 1e-9


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (2, 0, 3, 1), (3, 2, 1, 0)])
def test_all_arrives_where_prices_are_lost_in_the_distances(order):
    ends = [(order[index], order[(index + 1) % 4]) for index in range(4)]
    links = Links.build(Link(*one, Fraction(bandwidth)) for bandwidth, one in enumerate(ends, 1))
    problem = commodities_of(Topology("ring", tuple("abcd"), 4, links), symmetric=False)
    prices = np.where(problem.class_capacity % 2 == 1, 1.0, 1e-17)
    flows = PricedFlows(problem, prices, 0.2)
    assert_all_arrives(problem, flows.of_sources())
    loads = flows.loads()
    assert loads.whole.tolist() == [6 * loads.units] * 4
    assert loads.smooth <= loads.paid + 1e-9


def test_it_gives_up_where_it_stalls():
    problem = commodities_of(parse_topology("genkautz:4,25"))
    passes = []
    solution = priced_solution(problem, Fraction(0), lambda *bounds: passes.append(bounds), 1000)
    assert solution.gap > 0
    assert 24 < len(passes) < 600  # how many differs by processor: it ends where 24 bring the bounds hardly closer


@pytest.mark.parametrize("spec", ["genkautz:3,100", "without(torus:7x7;node=5)"])
def test_few_paths_are_mixed_until_the_gap_is_reached(spec):
    topology = parse_topology(spec)
    exact, priced = alltoall_rate(topology, method="lp"), alltoall_rate(topology, Fraction(1, 200), "prices")
    assert priced.gap <= Fraction(1, 200)
    assert priced.lower <= exact.upper
    assert exact.lower <= priced.upper


def test_too_many_flows_are_refused_by_methods_that_store_them(monkeypatch):
    monkeypatch.setattr(alltoall, "MAX_FLOWS", 100)
    with pytest.raises(InvalidInput, match="a method that stores flows"):
        alltoall_rate(parse_topology("genkautz:4,24"), method="lp")
