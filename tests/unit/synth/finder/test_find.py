"""The finder against published frontiers, its goals, and exhaustive small cases."""

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import pytest

from chorale.synth.collective import ALLGATHER
from chorale.synth.errors import CheckFailed, InvalidInput
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.executor.processes import ProcessExecutor
from chorale.synth.finder.base_candidates import BaseSources
from chorale.synth.finder.bfb_score import ScoreCache, bfb_score
from chorale.synth.finder.candidate import Workload, frontier
from chorale.synth.finder.confirmation import check_claims, confirm
from chorale.synth.finder.constructions import Constructions
from chorale.synth.finder.find import FinderQuery, _tasks, find, find_all
from chorale.synth.methods.catalog import synthesize
from chorale.synth.topology.spec import parse_topology

# Table 7 of the full paper: (steps, T_B to three digits) by number of nodes, degree 4.
PUBLISHED = {
    32: [(3, 1.000), (4, 0.969)],
    64: [(3, 1.312), (4, 1.000), (6, 0.984)],
    128: [(4, 1.031), (5, 1.000), (10, 0.992)],
    256: [(4, 1.328), (5, 1.016), (7, 1.000), (10, 0.996)],
    512: [(5, 1.039), (6, 1.008), (11, 1.000), (16, 0.998)],
    1024: [(5, 1.332), (6, 1.020), (8, 1.004), (11, 1.000), (20, 0.999)],
}
GOALS = {32: 3, 64: 4, 128: 4, 256: 5, 512: 5, 1024: 6}
DIGITS = 0.0006

# Table 5: steps of an allgather on the best bidirectional topologies of degree 4, all bandwidth-optimal.
TABLE_5 = {5: 1, 6: 2, 7: 2, 8: 2, 9: 2, 10: 2, 11: 2, 12: 2}


def rows(query: FinderQuery, confirmed_nodes: int = 1024) -> list[tuple[int, Fraction]]:
    found = find(query, SerialExecutor(), confirmed_nodes=confirmed_nodes).frontier
    assert all(row.confirmed == (query.nodes <= confirmed_nodes) for row in found)
    return [(row.candidate.steps, row.candidate.bandwidth_factor) for row in found]


def is_frontier(costs: list[tuple[int, Fraction]], query: FinderQuery) -> bool:
    falling = all(first[0] < second[0] and first[1] > second[1] for first, second in pairwise(costs))
    return falling and costs[0][0] >= query.least_steps and costs[-1][1] >= query.least_bandwidth_factor


@pytest.mark.parametrize("nodes", PUBLISHED)
def test_the_papers_bases_give_the_papers_frontier_or_a_better_one(nodes):
    query = FinderQuery(nodes, 4, bases="paper")
    ours = rows(query, confirmed_nodes=300)
    assert is_frontier(ours, query)
    for steps, factor in PUBLISHED[nodes]:
        assert any(s <= steps and f <= factor + DIGITS for s, f in ours), (steps, factor)
    # The row of fewest steps is the paper's own; nothing of the paper's bases beats it.
    assert (ours[0][0], float(ours[0][1])) == (
        PUBLISHED[nodes][0][0],
        pytest.approx(PUBLISHED[nodes][0][1], abs=DIGITS),
    )


def test_predictions_from_the_papers_bases_are_the_papers_frontier():
    """Before any score: what the formulas say is table 7, but for rows that the paper's own circulants beat."""
    for nodes, published in PUBLISHED.items():
        sources = BaseSources(ScoreCache(), "paper")
        groups = frontier(Constructions(sources).candidates(nodes, 4))
        ours = {(group[0].steps, round(float(group[0].bandwidth_factor), 3)) for group in groups}
        beaten = {128: {(10, 0.992)}, 512: {(11, 1.0)}}.get(nodes, set())
        better = {128: {(8, 0.992)}, 512: {(9, 1.0)}}.get(nodes, set())
        assert ours == set(published) - beaten | better, nodes


@pytest.mark.parametrize("nodes", GOALS)
def test_all_bases_reach_the_goals(nodes):
    query = FinderQuery(nodes, 4)
    ours = rows(query, confirmed_nodes=600)
    assert is_frontier(ours, query)
    assert any(steps <= GOALS[nodes] and factor == query.least_bandwidth_factor for steps, factor in ours)


def test_more_bases_never_give_less():
    """Of 1,536 nodes, an expansion of the paper's bases turns out better than predicted, and cheaper bases hide it."""
    paper, everything = (
        next(iter(find_all([FinderQuery(1536, 4, bases=bases)], SerialExecutor()).values()))
        for bases in ("paper", "all")
    )
    assert (paper[-1].steps, paper[-1].bandwidth_factor) == (10, Fraction(1535, 1536))
    for row in paper:
        assert any(o.steps <= row.steps and o.bandwidth_factor <= row.bandwidth_factor for o in everything), row


@pytest.mark.slow
def test_the_largest_goal_is_confirmed_by_its_schedule():
    assert (6, Fraction(1023, 1024)) in rows(FinderQuery(1024, 4))


@pytest.mark.parametrize("nodes", TABLE_5)
def test_bidirectional_degree_4(nodes):
    query = FinderQuery(nodes, 4, bidirectional=True)
    assert rows(query) == [(TABLE_5[nodes], Fraction(nodes - 1, nodes))]
    assert query.least_steps == TABLE_5[nodes]


@pytest.mark.parametrize(
    "query",
    [
        FinderQuery(2, 1),
        FinderQuery(7, 1),
        FinderQuery(3, 2),
        FinderQuery(30, 29),
        FinderQuery(17, 5),
        FinderQuery(36, 12),
        FinderQuery(16, 3, True),
        FinderQuery(21, 4, True),
        FinderQuery(27, 6, True),
        FinderQuery(50, 5, True),
        FinderQuery(60, 2),
        FinderQuery(100, 16),
        FinderQuery(96, 4),
        FinderQuery(45, 9),
    ],
)
def test_every_row_is_what_synth_makes_of_it(query):
    found = find(query, SerialExecutor(), confirmed_nodes=0)
    assert is_frontier([(row.candidate.steps, row.candidate.bandwidth_factor) for row in found.frontier], query)
    for row in found.frontier:
        topology = parse_topology(row.candidate.spec)
        assert (topology.compute_count, topology.degree) == (query.nodes, query.degree)
        if query.bidirectional:
            pairs = sorted(zip(topology.links.src.tolist(), topology.links.dst.tolist(), strict=True))
            assert pairs == sorted((dst, src) for src, dst in pairs)
        verified = synthesize(row.candidate.method, topology, ALLGATHER, None, SerialExecutor())
        real = (verified.schedule.steps, verified.cost.bandwidth_factor)
        assert real == (row.candidate.steps, row.candidate.bandwidth_factor)
        if row.candidate.method == "bfb":
            assert row.diameter == row.candidate.steps


def test_processes_find_what_serial_finds():
    executor = ProcessExecutor(2)
    try:
        for query in (FinderQuery(48, 4), FinderQuery(40, 6, bidirectional=True)):
            assert find(query, executor) == find(query, SerialExecutor())
        queries = [FinderQuery(nodes, 4) for nodes in range(5, 60)]
        assert find_all(queries, executor) == find_all(queries, SerialExecutor())
    finally:
        executor.close()


@pytest.mark.parametrize(("degree", "bidirectional"), [(2, False), (4, False), (4, True)])
def test_the_table_of_all_sizes_agrees_with_single_answers(degree, bidirectional):
    sizes = range(degree + 1, 70)
    queries = [FinderQuery(nodes, degree, bidirectional) for nodes in sizes]
    table = find_all(queries, SerialExecutor())
    assert list(table) == queries
    for query in queries[::9]:
        alone = find(query, SerialExecutor(), confirmed_nodes=0).frontier
        costs = [(c.steps, c.bandwidth_factor) for c in table[query]]
        assert costs == [(row.candidate.steps, row.candidate.bandwidth_factor) for row in alone]


@pytest.mark.slow
def test_all_sizes_up_to_2000():
    queries = [FinderQuery(nodes, 4) for nodes in range(5, 2001)]
    table = find_all(queries, SerialExecutor())
    for query, found in table.items():
        assert is_frontier([(c.steps, c.bandwidth_factor) for c in found], query)
        assert found[0].steps <= query.least_steps + 1  # generalized Kautz graphs
        assert found[-1].is_bandwidth_optimal  # circulants


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ((1, 1), "between 2 and"),
        ((10**6, 4), "between 2 and"),
        ((8, 0), "at least 1"),
        ((8, 8), "below the number of nodes"),
        ((4000, 1000), "at most 1048576 links"),
        ((7, 3, True), "even number"),
        ((4, 1, True), "must have 2 nodes"),
        ((8, 2, False, "ours"), "known"),
    ],
)
def test_questions_without_an_answer(arguments, rule):
    with pytest.raises(InvalidInput, match=rule):
        FinderQuery(*arguments)


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
    candidates = [
        row.candidate for row in find(FinderQuery(1024, 4, bases="paper"), SerialExecutor(), confirmed_nodes=0).frontier
    ]
    workload = Workload(Fraction(10), 10**6, Fraction(100))
    best = workload.best(candidates)
    assert best.steps == 6
    assert float(workload.time_us(best)) == pytest.approx(283.2, abs=0.1)
    assert workload.best(candidates[::-1]) == best
    assert Workload(Fraction(1000), 1, Fraction(100)).best(candidates) == candidates[0]
    assert Workload(Fraction(0), 2**30, Fraction(1)).best(candidates) == candidates[-1]


@pytest.mark.parametrize("values", [(-1, 1, 1), (1, 0, 1), (1, 1, 0)])
def test_workloads_must_make_sense(values):
    alpha, size, bandwidth = values
    with pytest.raises(InvalidInput):
        Workload(Fraction(alpha), size, Fraction(bandwidth))


@pytest.mark.parametrize(("spec", "rule"), [("uniring:1,70000", "hops"), ("genkautz:2,16385", "needs symmetries")])
def test_networks_that_are_too_large_have_no_score(spec, rule):
    with pytest.raises(InvalidInput, match=rule):
        bfb_score(parse_topology(spec))


def largest_prime_factor(number: int) -> int:
    divisors = [one for one in range(2, number + 1) if number % one == 0]
    return max(one for one in divisors if all(one % other for other in divisors if other < one))


def test_tasks_hold_every_size_once() -> None:
    queries = [FinderQuery(nodes, 4) for nodes in range(5, 2001)]
    tasks = _tasks(queries)
    assert len(tasks) == 64
    assert sorted((query for task in tasks for query in task), key=lambda query: query.nodes) == queries
    factors = [{largest_prime_factor(query.nodes) for query in task} for task in tasks]
    assert len(set().union(*factors)) == sum(map(len, factors))
    assert len(_tasks(queries[:3])) == len({5, 3, 7})
