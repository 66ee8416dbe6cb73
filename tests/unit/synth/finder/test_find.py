"""The finder against published frontiers and small cases: candidates, scores, cables that lie, Cayley digraphs."""

import random
from contextlib import closing
from dataclasses import replace
from fractions import Fraction
from functools import reduce
from itertools import combinations, pairwise, permutations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from chorale.experiments.framework.experiment import synthesized
from chorale.synth.errors import CheckFailed, InvalidInput
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.executor.processes import ProcessExecutor
from chorale.synth.finder import find as module
from chorale.synth.finder.cabling import place_nodes
from chorale.synth.finder.candidate import (
    ScoreCache,
    TopologyCandidate,
    Workload,
    bfb_score,
    cost_of,
    frontier,
    greatest_rate,
    least_steps,
    promising,
)
from chorale.synth.finder.cayley_search import (
    LOAD_UNIT,
    NO_LOAD,
    CayleySearch,
    multiplication_table,
    search_bases,
    search_cayley_graphs,
    semidirect_groups,
)
from chorale.synth.finder.constructions import (
    DISTANCE_REGULAR_STEPS,
    BaseSources,
    Constructions,
    database_entries,
    degree_of,
    line_of,
    optimal_families,
    power_of,
    product_of,
    scored_families,
    traits_of,
)
from chorale.synth.finder.find import FinderQuery, check_claims, confirm, find, find_all
from chorale.synth.kernels import native
from chorale.synth.methods.alltoall.alltoall import alltoall_rate
from chorale.synth.topology.families.directed import SemidirectProduct
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Links, Topology
from tests.properties import random_cases


@pytest.mark.parametrize("order", [2, 12, 21])
def test_groups_are_of_their_order_and_the_first_is_commutative(order):
    groups = list(semidirect_groups(order))
    assert len(set(groups)) == len(groups)
    assert {group.order for group in groups} == {order}
    tables = list(map(multiplication_table, groups))
    elements = np.arange(order)
    assert all(
        np.array_equal(table.T, each.product(elements[:, None], elements))
        for table, each in zip(tables, groups, strict=True)
    )
    commutative = [np.array_equal(table, table.T) for table in tables]
    assert commutative[0]
    assert all(commutative) == (order == 2)


@pytest.mark.parametrize(("group", "degree"), [(SemidirectProduct(5, 2, 4), 2), (SemidirectProduct(3, 2, 2, 2), 4)])
def test_enough_trials_find_the_best_of_all_generator_sets(group, degree):
    best: dict[int, object] = {}
    for generators in combinations(range(1, group.order), degree):
        spec = f"cayley:{group.m}.{group.k}.{group.r}.{group.l},{','.join(map(str, generators))}"
        try:
            score = bfb_score(parse_topology(spec))
        except InvalidInput:
            continue  # these do not generate the group
        best[score.steps] = min(best.get(score.steps, score.bandwidth_factor), score.bandwidth_factor)
    loads, found = native.best_generators(multiplication_table(group), degree, False, 12, 40_000, 7)
    fewest = min(best)
    assert int(np.flatnonzero(loads != NO_LOAD)[0]) == fewest
    assert loads[fewest] * degree == best[fewest] * group.order * LOAD_UNIT
    assert len(set(found[fewest].tolist())) == degree


@pytest.mark.parametrize(
    "hunt", [CayleySearch(24, 3), CayleySearch(30, 5, True), CayleySearch(16, 8), CayleySearch(13, 2)]
)
def test_what_is_found_is_what_it_says(hunt):
    found = search_cayley_graphs(hunt, range(6), SerialExecutor())
    assert found
    for candidate in found:
        topology = parse_topology(candidate.spec)
        score = bfb_score(topology)
        assert (score.steps, score.bandwidth_factor) == cost_of(candidate)
        assert (topology.compute_count, topology.degree) == (hunt.nodes, hunt.degree)
        assert traits_of(topology).bidirectional >= hunt.bidirectional
    assert [group[0] for group in frontier(found)] == list(found)


def test_what_is_found_serves_the_finder_and_line_graphs_need_smaller_bases():
    """Degree 3, 100 nodes, both ways: without a search there is little more than a ring with chords."""
    query = FinderQuery(100, 3, bidirectional=True)
    found = search_bases(query, 16, SerialExecutor(), lambda _name: None)
    assert list(found) == [(100, 3)]
    without, with_search = (find(query, SerialExecutor(), extra_bases=bases).frontier for bases in ({}, found))
    assert with_search[0].candidate.steps <= 8 < without[0].candidate.steps
    sizes = {(256, 4): [256, 64, 16], (8192, 4): [2048, 512, 128, 32, 8], (97, 20): [], (9, 1): []}
    for size, nodes in sizes.items():
        bases = search_bases(FinderQuery(*size), 0, SerialExecutor(), lambda _name: None)
        assert list(bases) == [(count, size[1]) for count in nodes]


# Table 7 of the full paper: (steps, T_B to three digits) by number of nodes, degree 4.
PUBLISHED = {
    32: [(3, 1.000), (4, 0.969)],
    64: [(3, 1.312), (4, 1.000), (6, 0.984)],
    128: [(4, 1.031), (5, 1.000), (10, 0.992)],
    256: [(4, 1.328), (5, 1.016), (7, 1.000), (10, 0.996)],
    512: [(5, 1.039), (6, 1.008), (11, 1.000), (16, 0.998)],
    1024: [(5, 1.332), (6, 1.020), (8, 1.004), (11, 1.000), (20, 0.999)],
}


def costs_of(query: FinderQuery, confirmed_nodes: int) -> list[tuple[int, Fraction]]:
    found = find(query, SerialExecutor(), confirmed_nodes=confirmed_nodes).frontier
    assert all(row.confirmed == (query.nodes <= confirmed_nodes) for row in found)
    return [cost_of(row.candidate) for row in found]


def is_frontier(costs: list[tuple[int, Fraction]], query: FinderQuery) -> bool:
    falling = all(first[0] < second[0] and first[1] > second[1] for first, second in pairwise(costs))
    return falling and costs[0][0] >= query.least_steps and costs[-1][1] >= query.least_bandwidth_factor


def test_predictions_from_the_papers_bases_are_the_papers_frontier():
    """Before any score: what the formulas say is table 7, but for rows that the paper's own circulants beat."""
    for nodes, published in PUBLISHED.items():
        sources = BaseSources(ScoreCache(), "paper")
        groups = frontier(Constructions(sources).candidates(nodes, 4))
        ours = {(group[0].steps, round(float(group[0].bandwidth_factor), 3)) for group in groups}
        beaten = {128: {(10, 0.992)}, 512: {(11, 1.0)}}.get(nodes, set())
        better = {128: {(8, 0.992)}, 512: {(9, 1.0)}}.get(nodes, set())
        assert ours == set(published) - beaten | better, nodes


@pytest.mark.parametrize(("nodes", "goal"), [(32, 3), (64, 4), (128, 4), (256, 5), (512, 5), (1024, 6)])
def test_all_bases_reach_the_goals(nodes, goal):
    query = FinderQuery(nodes, 4)
    ours = costs_of(query, confirmed_nodes=600)
    assert is_frontier(ours, query)
    assert any(steps <= goal and factor == query.least_bandwidth_factor for steps, factor in ours)


@pytest.mark.parametrize(
    "query",
    [FinderQuery(2, 1), FinderQuery(7, 1), FinderQuery(30, 29), FinderQuery(36, 12), FinderQuery(21, 4, True),
     FinderQuery(50, 5, True), FinderQuery(60, 2), FinderQuery(96, 4)],
)  # fmt: skip
def test_every_row_is_what_synth_makes_of_it(query):
    found = find(query, SerialExecutor(), confirmed_nodes=0)
    assert is_frontier([cost_of(row.candidate) for row in found.frontier], query)
    for row in found.frontier:
        topology = parse_topology(row.candidate.spec)
        assert (topology.compute_count, topology.degree) == (query.nodes, query.degree)
        if query.bidirectional:
            pairs = sorted(zip(topology.links.src.tolist(), topology.links.dst.tolist(), strict=True))
            assert pairs == sorted((dst, src) for src, dst in pairs)
        verified = synthesized(row.candidate.method, topology)
        assert (verified.schedule.steps, verified.cost.bandwidth_factor) == cost_of(row.candidate)
        if row.candidate.method == "bfb":
            assert row.diameter == row.candidate.steps


def test_processes_find_what_serial_finds():
    with closing(ProcessExecutor(2)) as executor:
        found = (search_cayley_graphs(CayleySearch(36, 4), range(12), each) for each in (executor, SerialExecutor()))
        assert next(found) == next(found)
        query = FinderQuery(40, 6, bidirectional=True)
        assert find(query, executor) == find(query, SerialExecutor())
        queries = [FinderQuery(nodes, 4) for nodes in range(5, 60)]
        assert find_all(queries, executor) == find_all(queries, SerialExecutor())


@pytest.mark.parametrize(("degree", "bidirectional"), [(2, False), (4, True)])
def test_the_table_of_all_sizes_agrees_with_single_answers(degree, bidirectional):
    sizes = range(degree + 1, 70)
    queries = [FinderQuery(nodes, degree, bidirectional) for nodes in sizes]
    table = find_all(queries, SerialExecutor())
    assert list(table) == queries
    for query in queries[::9]:
        assert list(map(cost_of, table[query])) == costs_of(query, confirmed_nodes=0)


@pytest.mark.parametrize(
    ("ask", "rule"),
    [
        *(
            (lambda size=size: CayleySearch(*size), "a search must have")
            for size in ((4, 4), (5, 1), (100, 9), (4096, 4))
        ),
        (lambda: FinderQuery(1, 1), "between 2 and"),
        (lambda: FinderQuery(10**6, 4), "between 2 and"),
        (lambda: FinderQuery(8, 0), "at least 1"),
        (lambda: FinderQuery(8, 8), "below the number of nodes"),
        (lambda: FinderQuery(4000, 1000), "at most 1048576 links"),
        (lambda: FinderQuery(7, 3, True), "even number"),
        (lambda: FinderQuery(4, 1, True), "must have 2 nodes"),
        (lambda: FinderQuery(8, 2, False, "ours"), "known"),
        (lambda: Workload(Fraction(-1), 1, Fraction(1)), "must not be negative"),
        (lambda: Workload(Fraction(1), 0, Fraction(1)), "at least one byte"),
        (lambda: Workload(Fraction(1), 1, Fraction(0)), "must be positive"),
        (lambda: bfb_score(parse_topology("uniring:1,70000")), "hops"),
        (lambda: bfb_score(parse_topology("genkautz:2,16385")), "needs symmetries"),
        (lambda: find(FinderQuery(2048, 4), SerialExecutor(), goal="both"), "up to 1024 nodes"),
    ],
)
def test_questions_without_an_answer(ask, rule):
    with pytest.raises(InvalidInput, match=rule):
        ask()


def test_a_wrong_claim_is_found_out():
    right = find(FinderQuery(7, 2), SerialExecutor()).frontier[0].candidate
    for wrong in (
        replace(right, steps=right.steps - 1),
        replace(right, bandwidth_factor=Fraction(1, 2)),
        replace(right, degree=3),
    ):
        with pytest.raises(CheckFailed, match="claimed"):
            confirm(wrong, SerialExecutor())
    with pytest.raises(CheckFailed, match="must take"):
        check_claims([(replace(right, steps=right.steps - 1),)], ScoreCache(), SerialExecutor())
    confirm(right, SerialExecutor())


def test_the_best_for_a_workload():
    """Table 4: alpha = 10 us and 1 MB at 100 Gbit/s; the factors that the paper prints give 283.2 us."""
    found = find(FinderQuery(1024, 4, bases="paper"), SerialExecutor(), confirmed_nodes=0)
    candidates = [row.candidate for row in found.frontier]
    workload = Workload(Fraction(10), 10**6, Fraction(100))
    best = workload.best(candidates)
    assert best.steps == 6
    assert float(workload.time_us(best)) == pytest.approx(283.2, abs=0.1)
    assert workload.best(candidates[::-1]) == best
    assert Workload(Fraction(1000), 1, Fraction(100)).best(candidates) == candidates[0]
    assert Workload(Fraction(0), 2**30, Fraction(1)).best(candidates) == candidates[-1]


def claim(spec: str, method: str = "bfb") -> TopologyCandidate:
    topology, cost = parse_topology(spec), synthesized(method, spec).cost
    costs = cost.steps, cost.bandwidth_factor
    return TopologyCandidate(
        spec, method, topology.compute_count, topology.degree, *costs, True, traits_of(topology), *costs
    )


@pytest.mark.parametrize(("spec", "method"), [("line(circulant:9,1,2)", "bfb"), ("line(power(diamond;2))", "expand")])
def test_beyond_the_size_of_schedules(monkeypatch, spec, method):
    """The limits are lowered, so that the same claims are confirmed by schedules too."""
    candidate = claim(spec, method)
    assert confirm(candidate, SerialExecutor()) == "schedule"
    monkeypatch.setattr(module, "automorphisms_are_transitive", lambda _topology: False)
    monkeypatch.setattr(module, "MAX_EXPANDED_RANKS", 4)
    assert confirm(candidate, SerialExecutor()) == ("prediction" if method == "bfb" else "none")
    if method == "expand":
        return
    wrong = replace(candidate, bandwidth_factor=candidate.bandwidth_factor - Fraction(1, 10**6))
    with pytest.raises(CheckFailed, match="must have the nodes, degree, steps and factor"):
        confirm(wrong, SerialExecutor())
    with pytest.raises(CheckFailed):
        confirm(replace(candidate, nodes=candidate.nodes + 1), SerialExecutor())


def test_one_rank_is_enough_where_symmetries_reach_all(monkeypatch):
    monkeypatch.setattr(module, "MAX_WHOLE_RANKS", 4)
    candidate = claim("torus:4x5")
    assert confirm(candidate, SerialExecutor()) == "symmetric schedule"
    with pytest.raises(CheckFailed):
        confirm(replace(candidate, steps=candidate.steps - 1), SerialExecutor())
    assert confirm(claim("line(bipartite:2)"), SerialExecutor()) in ("schedule", "symmetric schedule")


def test_large_rows_say_how_they_were_confirmed():
    rows = find(FinderQuery(6000, 4), SerialExecutor()).frontier
    assert [row.confirmation for row in rows].count("none") == 0
    assert rows[0].confirmation == "prediction"
    assert rows[-1].confirmation == "symmetric schedule"
    assert [row.confirmed for row in rows] == [row.confirmation != "prediction" for row in rows]


QUERY = FinderQuery(16, 3, bidirectional=True)


def test_the_best_by_rate_come_first_and_none_exceeds_the_bound():
    ranked = find(QUERY, SerialExecutor(), goal="alltoall").frontier
    rates = [alltoall_rate(parse_topology(row.candidate.spec)).lower for row in ranked]
    assert rates == [row.rate.lower for row in ranked] == sorted(rates, reverse=True)
    assert rates[0] <= greatest_rate(16, 3, bidirectional=True) == Fraction(3, 3 * 1 + 6 * 2 + 6 * 3)
    assert all(row.confirmed for row in ranked)


def test_both_keep_what_no_other_beats_in_all_three():
    both = find(QUERY, SerialExecutor(), goal="both").frontier
    costs = [(-row.rate.lower, row.candidate.steps, row.candidate.bandwidth_factor) for row in both]
    assert not any(a != b and all(x <= y for x, y in zip(a, b, strict=True)) for a in costs for b in costs)
    for row in find(QUERY, SerialExecutor()).frontier:
        assert any(cost[1:] == (row.candidate.steps, row.candidate.bandwidth_factor) for cost in costs)


@pytest.mark.parametrize("spec", ["torus:3x4", "bidirectional(base:cayley-24-2)"])
def test_a_network_with_hosts_in_any_order_needs_no_move(spec):
    wanted = parse_topology(spec)
    at = random.Random(1).sample(range(wanted.node_count), wanted.node_count)
    ends = zip(wanted.links.src.tolist(), wanted.links.dst.tolist(), strict=True)
    lying = sorted({tuple(sorted((f"n{at[one]}", f"n{at[other]}"))) for one, other in ends})
    hosts = list(dict.fromkeys(host for cable in lying for host in cable))
    cabling = place_nodes(wanted, hosts, lying, True)
    assert (cabling.moves, cabling.removed, sorted(cabling.kept)) == (0, (), lying)


def test_as_many_cables_stay_as_any_place_keeps():
    hosts, wanted = [f"h{rank}" for rank in range(7)], parse_topology("circulant:7,1,2")
    lying = sorted({(hosts[a], hosts[b]) for a, b, *_ in parse_topology("circulant:7,1,3").links if a < b})
    links = {(a, b) for a, b, *_ in wanted.links if a < b}
    most = max(len({tuple(sorted((at[a], at[b]))) for a, b in links} & set(lying)) for at in permutations(hosts))
    cabling = place_nodes(wanted, hosts, lying, True)
    assert len(cabling.kept) == most
    assert sorted(cabling.kept + cabling.removed) == lying
    assert len(cabling.kept) + cabling.moves == len(links)


def check_base(candidate) -> None:
    topology = parse_topology(candidate.spec)
    assert (topology.compute_count, topology.degree) == (candidate.nodes, candidate.degree), candidate
    assert replace(traits_of(topology), reverse_symmetric=candidate.traits.reverse_symmetric) == candidate.traits
    if candidate.method == "bfb":
        score = bfb_score(topology)
        assert (score.steps, score.bandwidth_factor) == (candidate.steps, candidate.bandwidth_factor), candidate
    assert (candidate.least_steps, candidate.least_factor) == (candidate.steps, candidate.bandwidth_factor)


@pytest.mark.parametrize("degree", [1, 2, 4, 8])
def test_families_keep_their_promise(degree):
    seen = set()
    for nodes in (*range(max(2, degree + 1), 66), *(nodes for nodes in DISTANCE_REGULAR_STEPS if nodes > 65)):
        for candidate in optimal_families(nodes, degree):
            family = candidate.spec.partition(":")[0]
            if nodes < 66 or family == "distreg":
                check_base(candidate)
            seen.add(family)
    assert "uniring" in seen
    expected = {1: {"complete"}, 2: {"ring", "hypercube"}, 4: {"circulant", "distreg", "hamming", "twisted-torus"}}
    assert expected.get(degree, set()) <= seen


@pytest.mark.parametrize("degree", [2, 4, 5])
def test_scored_families(degree):
    scores = ScoreCache()
    for nodes in range(degree + 1, 40):
        for candidate in scored_families(nodes, degree, scores, bidirectional=False):
            check_base(candidate)


def test_a_bidirectional_network_exists_wherever_it_can():
    sources = BaseSources(ScoreCache(), bidirectional=True)
    for degree in range(2, 9):
        for nodes in range(degree + 1, 60):
            if nodes * degree % 2 == 0:
                found = list(sources.all(nodes, degree))
                assert found, (nodes, degree)
                assert all(candidate.traits.bidirectional for candidate in found)


def test_database_entries_of_both_kinds():
    methods = {(c.spec, c.method): c for c in database_entries(8, 2, ScoreCache(), paper_only=False)}
    assert (methods["diamond", "expand"].steps, methods["diamond", "expand"].bandwidth_factor) == (3, Fraction(7, 8))
    assert methods["diamond", "bfb"].bandwidth_factor == 1
    assert ("base:d3", "bfb") in methods
    plain = {c.spec for c in database_entries(8, 2, ScoreCache(), paper_only=True)}
    assert plain == {"diamond", "dbjmod:2,3"}


SCORES = ScoreCache()
SMALL = [
    candidate
    for degree in (1, 2, 3, 4)
    for nodes in range(degree + 1, 13)
    for candidate in BaseSources(SCORES).all(nodes, degree)
]


def check(candidate: TopologyCandidate) -> None:
    topology = parse_topology(candidate.spec)
    assert (topology.compute_count, topology.degree) == (candidate.nodes, candidate.degree), candidate
    real, told = traits_of(topology), candidate.traits
    assert real.self_loops == told.self_loops
    assert real.simple or not told.simple
    assert real.bidirectional or not told.bidirectional
    if candidate.method == "bfb":
        score = bfb_score(topology)
        assert candidate.least_steps <= score.steps
        assert candidate.least_factor <= score.bandwidth_factor
        if not candidate.spec.startswith("bidirectional"):
            assert score.steps <= candidate.steps
    else:
        confirm(candidate, SerialExecutor())


@st.composite
def towers(draw: st.DrawFn) -> TopologyCandidate:
    """Two or three expansions on top of each other, up to 300 nodes."""
    candidate = draw(st.sampled_from(SMALL))
    for _ in range(draw(st.integers(2, 3))):
        grown = [power_of(candidate, 2)] + [line_of(candidate)] * (candidate.degree > 1)
        grown += [] if candidate.traits.self_loops else [degree_of(candidate, 2)]
        fitting = [c for c in grown if c.nodes <= 300 and c.degree <= 16]
        if fitting:
            candidate = draw(st.sampled_from(fitting))
    return candidate


@random_cases(60)
@given(towers())
def test_towers_of_expansions(candidate):
    check(candidate)


@random_cases(40)
@given(st.data())
def test_products_of_optimal_parts_are_optimal_in_the_sum_of_steps(data):
    fit = [c for c in SMALL if c.traits.simple and c.method == "bfb" and c.is_bandwidth_optimal and c.degree <= 3]
    parts = data.draw(st.lists(st.sampled_from(fit), min_size=2, max_size=3))
    product = reduce(product_of, parts)
    if product.nodes <= 600:
        check(product)
        score = bfb_score(parse_topology(product.spec))
        assert (score.steps, score.bandwidth_factor) == (product.steps, product.bandwidth_factor)


def test_specs_stay_flat():
    ring = next(c for c in SMALL if c.spec == "ring:5")
    square = power_of(ring, 2)
    assert square.spec == "torus:5x5"
    assert power_of(square, 2).spec == "torus:5x5x5x5"
    assert product_of(square, ring).spec == "torus:5x5x5"
    assert line_of(line_of(line_of(ring))).spec == "line(ring:5;3)"
    one_way = next(c for c in SMALL if c.spec == "uniring:1,4")
    assert power_of(power_of(one_way, 2), 2).spec == "power(uniring:1,4;4)"
    assert product_of(product_of(one_way, ring), one_way).spec == "product(uniring:1,4;ring:5;uniring:1,4)"


def check_score(topology: Topology) -> None:
    score, cost = bfb_score(topology), synthesized("bfb", topology).cost
    assert (score.steps, score.bandwidth_factor) == (cost.steps, cost.bandwidth_factor)


@pytest.mark.parametrize(
    "spec", ["complete:2", "debruijn:2,4", "genkautz:4,23", "circulant:60,1,2,3,4,5", "uniring:1,40"]
)
def test_score_is_the_cost_of_the_schedule(spec):
    check_score(parse_topology(spec))


@st.composite
def regular_digraphs(draw: st.DrawFn) -> Topology:
    """Unions of permutations, the first a cycle through all nodes: self-loops and parallel links may occur."""
    nodes, degree = draw(st.integers(3, 12)), draw(st.integers(1, 4))
    cycle = draw(st.permutations(range(nodes)))
    images = [np.array(cycle)[(np.argsort(cycle) + 1) % nodes]]
    images += [np.array(draw(st.permutations(range(nodes)))) for _ in range(degree - 1)]
    links = Links.of_unit_capacity(np.tile(np.arange(nodes), degree), np.concatenate(images))
    return Topology("random", tuple(map(str, range(nodes))), nodes, links)


@given(regular_digraphs())
def test_random_networks_score_as_their_schedules_cost(topology):
    check_score(topology)


def test_a_high_diameter_is_told_by_no_loads():
    tails = ((np.arange(40) - 1) % 40).astype(np.int32)[:, None]
    top, bottom = native.loads_of_low_diameter(tails, np.array([0]), 38)
    assert len(top) == len(bottom) == 0
    assert native.loads_of_low_diameter(tails, np.array([0]), 39)[0].tolist() == [1] * 39


def test_scores_are_computed_once_and_irregular_and_unequal_networks_have_none():
    specs = [f"ring:{nodes}" for nodes in range(3, 150)]
    scores = ScoreCache()
    scores.compute(specs + specs[:5], SerialExecutor())
    assert all(scores.of(f"ring:{nodes}").steps == nodes // 2 for nodes in range(3, 150))
    assert len(scores) == len(specs)
    for spec in ("mesh:3x3", "scaled(ring:5;link=0-1;factor=1/2)", "dbt:8"):
        with pytest.raises(InvalidInput, match="regular"):
            bfb_score(parse_topology(spec))


@st.composite
def candidates(draw: st.DrawFn) -> list[TopologyCandidate]:
    numbers = st.tuples(st.integers(1, 6), st.integers(1, 6), st.integers(0, 2), st.integers(0, 2))
    found = []
    for index, (steps, factor, fewer, less) in enumerate(draw(st.lists(numbers))):
        costs = {"steps": steps, "bandwidth_factor": Fraction(factor), "exact": not (fewer or less)}
        least = {"least_steps": steps - fewer, "least_factor": Fraction(2 * factor - less, 2)}
        found.append(replace(SMALL[0], spec=f"ring:{index + 3}", **costs, **least))
    return found


def dominates(first, second) -> bool:
    return first != second and first[0] <= second[0] and first[1] <= second[1]


@given(candidates())
def test_frontier_is_what_nobody_beats(everyone):
    efficient = [c for c in everyone if not any(dominates(cost_of(other), cost_of(c)) for other in everyone)]
    groups = frontier(everyone)
    assert sorted(c.spec for group in groups for c in group) == sorted(c.spec for c in efficient)
    assert [group[0].steps for group in groups] == sorted({c.steps for c in efficient})
    assert all(len({cost_of(c) for c in group}) == 1 for group in groups)
    assert all(list(group) == sorted(group, key=lambda c: c.tie_break) for group in groups)


@given(candidates())
def test_promising_are_those_that_could_still_be_efficient(everyone):
    kept = promising(everyone)
    for candidate in everyone:
        least = (candidate.least_steps, candidate.least_factor)
        assert (candidate in kept) == (not any(dominates(cost_of(other), least) for other in everyone))
    efficient = {c for group in frontier(everyone) for c in group}
    assert efficient <= set(kept)


def depth_of_fullest_tree(nodes: int, degree: int, bidirectional: bool) -> int:
    """Hang nodes below the root level by level, as many as links allow."""
    level, reached, depth = [degree], 1, 0
    while reached < nodes:
        assert level
        level = [degree - bidirectional for places in level for _ in range(places)]
        reached += len(level)
        depth += 1
    return depth


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("degree", [2, 7])
def test_least_steps_are_the_depth_of_the_fullest_tree(degree, bidirectional):
    for nodes in range(2, 300):
        expected = depth_of_fullest_tree(nodes, degree, bidirectional)
        assert least_steps(nodes, degree, bidirectional) == expected
    assert least_steps(2, 1, True) == 1
    with pytest.raises(ValueError, match="degree 1"):
        least_steps(3, 1, True)
