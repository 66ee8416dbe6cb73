"""All-to-all rates against the whole program and closed forms; flows by prices, whole ones, and their schedules."""

from dataclasses import replace
from fractions import Fraction

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, strategies as st

from chorale.synth.bounds.certificate import check_alltoall_certificate, check_certificate
from chorale.synth.bounds.lower_bound import lower_bound
from chorale.synth.collective import ALLTOALL
from chorale.synth.errors import CheckFailed, InvalidInput
from chorale.synth.identity import common_denominator
from chorale.synth.methods.alltoall import alltoall
from chorale.synth.methods.alltoall.alltoall import (
    METHODS,
    alltoall_rate,
    approximate,
    certify,
    factors_of,
    parse_method,
)
from chorale.synth.methods.alltoall.balance import Router, fine_units
from chorale.synth.methods.alltoall.linear_program import Commodities, Reduction, commodities_of, reduced_problem
from chorale.synth.methods.alltoall.price_descent import Floats, PricedFlows, priced_solution
from chorale.synth.methods.alltoall.rate import PRICE_UNITS, distance_bound, integer_prices
from chorale.synth.methods.alltoall.schedule import alltoall_schedule, require_schedule_size
from chorale.synth.schedule.schedule import Schedule
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology
from chorale.synth.verify.verify import verify
from tests.links import both, network
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


def test_small_problems_go_to_the_solver_and_large_ones_do_not(monkeypatch):
    assert alltoall_rate(parse_topology("mesh:3x4")).method == "lp"
    assert alltoall_rate(parse_topology("genkautz:3,500"), gap=Fraction(1, 10)).method == "prices"
    monkeypatch.setattr(alltoall, "MAX_FLOWS", 100)
    with pytest.raises(InvalidInput, match="a method that stores flows"):
        alltoall_rate(parse_topology("genkautz:4,24"), method="lp")


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
    def problem_of(rows, symmetry):
        return commodities_of(replace(network(3, 0, rows), automorphisms=(np.array(symmetry, dtype=np.int32),)))

    # Orbits of parallel links of different bandwidth stay apart.
    problem = problem_of([(u, (u + 1) % 3, width) for u in range(3) for width in (1, 2)], [1, 2, 0])
    assert (problem.sources.tolist(), problem.class_size.tolist()) == ([0], [3, 3])
    assert sorted(problem.class_capacity.tolist()) == [1, 2]
    # A false symmetry is not used.
    assert len(problem_of([(0, 1, 1), (1, 2, 1), (2, 0, 1), (0, 2, 1)], [1, 2, 0]).sources) == 3
    # A path of three nodes, mirrored: the ends are alike, the middle is not.
    problem = problem_of(both((0, 1, 1), (1, 2, 1)), [2, 1, 0])
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
    rows = [(order[index], order[(index + 1) % 4], index + 1) for index in range(4)]
    problem = commodities_of(network(4, 0, rows), symmetric=False)
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


@given(
    strongly_connected_topologies(2, 7, switches=2), st.integers(0, 2**32 - 1), st.sampled_from([1, 2, 3, 10, 720720])
)
def test_random_flows_become_whole_ones_that_deliver(topology, seed, units):
    problem, noise = commodities_of(topology), np.random.default_rng(seed)
    flows = noise.exponential(size=(len(problem.sources), problem.link_count))
    router = Router(problem, units)
    whole = router.route(np.where(noise.random(flows.shape) < 0.3, 0.0, flows), slice(None))
    assert whole.min() >= 0
    assert_all_arrives(problem, whole / units)
    for used in whole > 0:
        graph = nx.DiGraph(zip(problem.src[used].tolist(), problem.dst[used].tolist(), strict=True))
        assert nx.is_directed_acyclic_graph(graph)
    assert np.array_equal(router.loads, whole.sum(axis=0))
    slowest = max(
        Fraction(int(load)) / link.bandwidth
        for load, link in zip(whole.sum(axis=0), (topology.links[int(i)] for i in problem.link_ids), strict=True)
    )
    assert router.rate() == units / slowest


@given(networks(2, 7), st.integers(0, 2**32 - 1))
def test_the_bound_by_prices_is_a_quotient_of_distances(topology, seed):
    """Where nobody has to pay, prices bound nothing."""
    problem, draw = commodities_of(topology), np.random.default_rng(seed)
    prices = draw.integers(0, 20, problem.link_count) * (draw.random(problem.link_count) < draw.random())
    prices[0] += 1
    graph = nx.DiGraph()
    for src, dst, price in zip(problem.src.tolist(), problem.dst.tolist(), prices.tolist(), strict=True):
        graph.add_edge(src, dst, weight=min(price, graph.get_edge_data(src, dst, {"weight": price})["weight"]))
    paid = sum(sum(lengths.values()) for _, lengths in nx.all_pairs_dijkstra_path_length(graph))
    earned = sum(
        int(price) * topology.links[int(i)].bandwidth for price, i in zip(prices, problem.link_ids, strict=True)
    )
    assert distance_bound(problem, prices) == (earned / paid if paid else None)


@pytest.mark.parametrize(
    ("prices", "whole"),
    [
        ([0.5, 0.25, 0.0], [PRICE_UNITS, PRICE_UNITS // 2, 0]),
        ([1.0, 1 / 3, -1e-9], [PRICE_UNITS, PRICE_UNITS // 3, 0]),
        ([0.0, 0.0], [1, 1]),
        ([1.0, 18 / 19], [PRICE_UNITS // 19 * 19, PRICE_UNITS // 19 * 18]),
    ],
)
def test_prices_become_whole_numbers_of_the_same_ratios(prices, whole):
    assert integer_prices(np.array(prices)).tolist() == whole


def test_common_denominators_are_found_up_to_a_limit():
    assert common_denominator(np.array([0.25, 5 / 6, 49 / 11, 7]), 10**6) % 132 == 0
    assert common_denominator(np.array([2**0.5]), 10**6) == 1
    assert common_denominator(np.array([1 / 997, 1 / 991]), 1000) == 1
    assert fine_units(100, 1) == fine_units(100, 48) == 720720
    assert fine_units(100, 19) % 19 == 0
    assert fine_units(100, 10**6) == 10**6


def test_a_node_without_any_flow_still_gets_its_share():
    problem = commodities_of(network(3, 0, [(0, 1, 1), (1, 2, 1), (2, 0, 1)]))
    whole = Router(problem, 5).route(np.zeros((3, 3)), slice(None))
    assert sorted(whole.sum(axis=1).tolist()) == [15, 15, 15]


def gap_of(schedule: Schedule) -> Fraction:
    """Return how much longer the schedule takes than the certificate says is needed."""
    upper = check_alltoall_certificate(schedule.topology, schedule.certificate)
    return verify(schedule).cost.time_per_byte * schedule.topology.compute_count * upper - 1


@given(networks(2, 7))
@random_cases(30)
def test_schedules_verify_and_come_close_to_the_rate(topology):
    schedule = alltoall_schedule(topology)
    best = full_alltoall_rate(topology)
    reached = 1 / (verify(schedule).cost.time_per_byte * topology.compute_count)
    assert float(reached) <= best * (1 + 1e-7)
    assert float(check_alltoall_certificate(topology, schedule.certificate)) >= best * (1 - 1e-7)
    assert 0 <= gap_of(schedule) < 0.12  # at most 64 chunks by default; see the next test


def test_chunks_left_over_go_where_they_take_the_least_time():
    forth, back = ("25/4", 5, *[1] * 8), ("25/4", "25/4", "25/4", 1)
    topology = network(2, 0, [*((0, 1, width) for width in forth), *((1, 0, width) for width in back)])
    schedule = alltoall_schedule(topology, 64)
    # 22 and 18 chunks on the wide links, 3 on each other one: no way of sharing 64 takes less than 18 / 5.
    slowest = Fraction(18, 5) / 64
    assert verify(schedule).cost.time_per_byte * topology.compute_count == slowest
    assert gap_of(alltoall_schedule(topology)) < 0.03


@pytest.mark.parametrize(("spec", "hops"), [("ring:5", 2), ("torus:4x4", 4), ("complete:5", 1), ("uniring:2,4", 3)])
def test_simple_networks_get_optimal_schedules_over_shortest_paths(spec, hops):
    schedule = alltoall_schedule(parse_topology(spec))
    assert gap_of(schedule) == 0
    assert schedule.steps == hops
    verified = verify(schedule)
    assert verified.cost.time_per_byte * alltoall_rate(schedule.topology).rate * schedule.topology.compute_count == 1
    assert verified.link_loads.duplicate_deliveries == 0


def test_prices_make_schedules_too():
    schedule = alltoall_schedule(parse_topology("genkautz:3,20"), 64, Fraction(1, 50), "prices")
    assert schedule.parameters == {"chunks": 64, "solver": "prices"}
    assert 0 <= gap_of(schedule) < 0.05


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "bfb-steps"}, "bfb-steps"),
        ({"prices": [1, 1]}, "one whole number >= 0 per link"),
        ({"prices": [0.5] * 6}, "one whole number >= 0 per link"),
        ({"prices": [0] * 6}, "do not prove 1"),
        ({"prices": [1, 1, 1, 1, 1, 9]}, "do not prove 1"),
        ({"rate_upper": "999/1000"}, "do not prove 999/1000"),
        ({"rate_upper": None}, "a rate_upper that is no rational number"),
    ],
)
def test_a_certificate_that_was_tampered_with(change, message):
    schedule = alltoall_schedule(parse_topology("ring:3"))
    assert check_alltoall_certificate(schedule.topology, schedule.certificate) == 1
    with pytest.raises(CheckFailed, match=message):
        check_alltoall_certificate(schedule.topology, {**schedule.certificate, **change})


def test_schedules_that_are_too_large_are_refused():
    with pytest.raises(InvalidInput, match=r"at most 512 ranks and 4194304 pairs.*, got 600 ranks, 1440000 pairs in"):
        alltoall_schedule(parse_topology("torus:20x30"))
    with pytest.raises(InvalidInput, match="chunks per shard must be 1 to 4096, got 0"):
        require_schedule_size(parse_topology("ring:3"), 0)
