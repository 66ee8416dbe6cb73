"""Tokens with copies: each crosses to a box once, sums come back, other code checks bounds; where experts should be."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from chorale.synth.errors import CheckFailed, InvalidInput
from chorale.synth.methods.traffic.certificate import check_copies_certificate
from chorale.synth.methods.traffic.copies import DispatchPlan, plan_dispatch
from chorale.synth.methods.traffic.placement import advise, bound_of, eplb
from chorale.synth.methods.traffic.planner import plan_amounts
from chorale.synth.methods.traffic.tokens import TokenBatch, TokenRouting, route_tokens
from chorale.synth.topology.spec import parse_topology
from chorale.synth.verify.verify import inspect, verify

NETWORKS = ["h100:1", "h100:2", "mi300x:2", "ring:5", "mesh:2x3", "fattree:4"]


def routing_on(spec: str, tokens: int, experts: int, k: int, seed: int, replicas: int = 1) -> TokenRouting:
    ranks, random = parse_topology(spec).compute_count, np.random.default_rng(seed)
    chosen = np.array([random.choice(experts, k, replace=False) for _ in range(tokens * ranks)])
    placement = random.integers(0, ranks, (experts, replicas))
    return route_tokens(TokenBatch("random", chosen, np.repeat(np.arange(ranks), tokens), placement, 7), ranks)


def checked(plan: DispatchPlan) -> None:
    """Verify both ways; the schedule of the dispatch must take as long as the plan says, and no less than is proven."""
    for combine, time in ((False, plan.time), (True, plan.combine_time)):
        schedule = plan.schedule(combine)
        verified = verify(schedule)
        of_chunks = verified.cost.time_per_byte / schedule.chunk_part
        sizes = schedule.collective.sizes
        assert sizes is not None
        assert of_chunks * Fraction(int(plan.routing.amount.sum()), sum(sizes)) == time
        assert check_copies_certificate(schedule) <= of_chunks


@settings(max_examples=15)
@given(st.sampled_from(NETWORKS), st.integers(1, 4), st.integers(2, 12), st.integers(0, 9), st.integers(1, 2))
def test_any_routing_is_planned_both_ways_and_no_slower_than_without_copies(spec, k, experts, seed, replicas):
    routing = routing_on(spec, 3, experts, min(k, experts), seed, replicas)
    topology = parse_topology(spec)
    plan = plan_dispatch(topology, routing)
    if not len(routing.source):  # all experts are where their tokens are
        assert (plan.time, plan.gap) == (0, 0)
        with pytest.raises(InvalidInput, match="no token goes to another rank"):
            plan.schedule()
        return
    checked(plan)
    assert plan.bound.time <= plan.time <= plan_amounts(topology, routing.without_copies()).time


def test_a_token_crosses_to_a_box_once():
    topology = parse_topology("h100:2")
    experts = np.array([[8, 9, 10, 11]] * 8)
    routing = route_tokens(TokenBatch("one box", experts, np.arange(8), np.arange(16)[:, None], 100), 16)
    plan = plan_dispatch(topology, routing)
    checked(plan)
    assert plan.gap == 0
    assert plan_amounts(topology, routing.without_copies()).time / plan.time >= 2
    across = (plan.edges.sender < 8) & (plan.edges.receiver >= 8)
    assert int((plan.edges.hi - plan.edges.lo)[across].sum()) == 800


@pytest.mark.parametrize("popularity", [0.8, 1.5])
def test_popular_experts_are_reached_over_all_lanes_and_nics(popularity):
    random, weights = np.random.default_rng(1), 1 / np.arange(1, 65) ** popularity
    experts = np.argsort(-np.log(weights) - random.gumbel(size=(1024, 64)), axis=1)[:, :6]
    tokens = TokenBatch("popular", experts, np.arange(1024) // 64, np.arange(64)[:, None] % 16)
    assert plan_dispatch(parse_topology("h100:2"), route_tokens(tokens, 16)).gap < Fraction(1, 100)


def of_a_busy_source(spec: str, tokens: int, experts: int, k: int, share: float, on_a_rank: int = 4) -> DispatchPlan:
    """Return the plan of tokens for `k` of the experts each, a `share` of which rank 3 has."""
    topology, random = parse_topology(spec), np.random.default_rng(1)
    ranks = topology.compute_count
    chosen = np.argsort(random.random((tokens, experts)), axis=1)[:, :k]
    sources = np.where(random.random(tokens) < share, 3, np.arange(tokens) * ranks // tokens)
    batch = TokenBatch("busy", chosen, sources, np.arange(experts)[:, None] // on_a_rank)
    checked(plan := plan_dispatch(topology, route_tokens(batch, ranks)))
    return plan


@pytest.mark.parametrize("spec", ["h100:2", "mi300x:2"])
@pytest.mark.parametrize(("experts", "share"), [(64, 0.5), (64, 1), (32, 1), (32, 0.5)])
def test_others_copy_the_tokens_of_a_busy_source(spec, experts, share):
    """Rank 3 has most tokens; 32 experts are all in its box."""
    plan = of_a_busy_source(spec, 512, experts, 6, share)
    assert plan.gap < Fraction(3, 100)
    assert plan.uncopied_time > 2 * plan.time


@pytest.mark.parametrize("k", [2, 8])
def test_other_boxes_copy_the_tokens_of_a_busy_box(k):
    """Rank 3 has most tokens, for experts in four boxes: NICs of its box send a token once."""
    assert of_a_busy_source("h100:4", 1024, 64, k, 0.8, on_a_rank=2).gap < Fraction(2, 100)


@pytest.mark.parametrize(("spec", "most"), [("fattree:4", 0), ("torus:4x4", 2), ("without(h100:2;node=3)", 6)])
def test_ranks_copy_along_trees_on_any_network(spec, most):
    plan = of_a_busy_source(spec, 256, 4 * parse_topology(spec).compute_count, 8, 1)
    assert plan.method == "trees"
    assert plan.gap <= Fraction(most, 100)
    assert plan.uncopied_time > 3 * plan.time


def test_replicas_on_the_own_rank_or_where_the_token_goes_anyway():
    batch = TokenBatch("replicas", np.array([[0, 1], [1, 0]]), np.array([0, 3]), np.array([[2, 0], [3, 2]]))
    routing = route_tokens(batch, 4)
    assert routing.members() == [[0, 0, 3], [3, 0, 3]]


@pytest.mark.parametrize("combine", [False, True])
def test_each_missing_transfer_is_noticed(combine):
    schedule = plan_dispatch(parse_topology("h100:2"), routing_on("h100:2", 1, 16, 3, 1)).schedule(combine)
    for row in range(0, len(schedule.transfers), 7):
        kept = np.delete(np.arange(len(schedule.transfers)), row)
        violations, verified = inspect(replace(schedule, transfers=schedule.transfers.select(kept)))
        assert verified is None
        assert violations


def test_a_sum_that_a_rank_has_nothing_of_is_noticed():
    topology = parse_topology("h100:1")
    schedule = plan_dispatch(topology, routing_on("h100:1", 1, 8, 2, 3)).schedule(combine=True)
    members = tuple((ranks[0], *ranks[2:]) if len(ranks) > 2 else ranks for ranks in schedule.collective.members or ())
    violations, _ = inspect(replace(schedule, collective=replace(schedule.collective, members=members)))
    assert violations[0].rule == "reduced-into-nothing"


def test_a_certificate_that_claims_too_much_is_refused():
    schedule = plan_dispatch(parse_topology("h100:2"), routing_on("h100:2", 2, 16, 3, 1)).schedule()
    claimed = Fraction(str(schedule.certificate["time_lower"])) * Fraction(1001, 1000)
    for wrong in ({"time_lower": str(claimed)}, {"inside": []}, {"inside": [99999]}, {"time_lower": "x"}):
        with pytest.raises(CheckFailed):
            check_copies_certificate(replace(schedule, certificate={**schedule.certificate, **wrong}))


@pytest.mark.parametrize(
    ("experts", "sources", "placement", "message"),
    [
        ([[3]], [0], [[0], [1]], "the expert of a token must be -1 to 1, got 3"),
        ([[0]], [4], [[0], [1]], "the rank of a token must be 0 to 3, got 4"),
        ([[0]], [0], [[7], [1]], "the rank of an expert must be -1 to 3, got 7"),
        ([[0]], [0], [[-1], [1]], "an expert is on no rank"),
        ([[0]], [0, 1], [[0], [1]], "1 tokens and 2 ranks"),
    ],
)
def test_what_is_no_routing(experts, sources, placement, message):
    with pytest.raises(InvalidInput, match=message):
        route_tokens(TokenBatch("wrong", np.array(experts), np.array(sources), np.array(placement)), 4)


def test_steps_lower_the_bound_and_the_plan_follows():
    logits = np.random.default_rng(0).gumbel(size=(512, 32)) - np.log(np.arange(32) + 1.0)
    chosen, placement = np.argsort(-logits, axis=1)[:, :2], np.arange(32)[:, None] // 2
    topology, batch = parse_topology("h100:2"), TokenBatch("skewed", chosen, np.arange(512) // 32, placement)
    before = bound_of(topology, batch)
    steps = advise(topology, batch, 4)
    assert steps
    last = steps[-1]
    assert last.time_lower == bound_of(topology, batch._replace(placement=last.placement)) < before
    after = plan_dispatch(topology, route_tokens(batch._replace(placement=last.placement), 16))
    assert after.time < plan_dispatch(topology, route_tokens(batch, 16)).time
    for step in steps:
        assert step.target in step.placement[step.expert]
        assert step.source in step.placement[step.expert if step.other is None else step.other]


def test_the_rule_of_eplb():
    experts = np.repeat([0, 1, 2, 3], [8, 4, 3, 1])[:, None]
    batch = TokenBatch("eplb", experts, np.zeros(16, dtype=np.int64), np.array([[0], [0], [1], [1]]))
    assert eplb(batch, 2, 0).tolist() == [[0], [1], [1], [0]]
    assert eplb(batch, 2, 1).tolist() == [[0, 1], [0, -1], [1, -1], [1, -1]]
