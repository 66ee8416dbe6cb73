"""Plans of given traffic and of tokens with copies against a program over all paths, certificates and closed forms."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from chorale.synth.build.build import build_program
from chorale.synth.errors import CheckFailed, InvalidInput
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.methods.alltoall.alltoall import alltoall_rate
from chorale.synth.methods.traffic.certificate import check_copies_certificate, check_traffic_certificate
from chorale.synth.methods.traffic.copies import DispatchPlan, plan_dispatch
from chorale.synth.methods.traffic.fabric import rail_fabric
from chorale.synth.methods.traffic.matrix import (
    MAX_TOTAL_CHUNKS,
    ChunkCounts,
    chunk_counts,
    exact_counts,
    traffic_matrix,
    zipf_matrix,
)
from chorale.synth.methods.traffic.placement import advise, bound_of, eplb
from chorale.synth.methods.traffic.plan import certificate_of, traffic_schedule
from chorale.synth.methods.traffic.planner import along, baseline_times, plan_amounts, plan_traffic, replan
from chorale.synth.methods.traffic.tokens import TokenBatch, TokenRouting, route_tokens
from chorale.synth.methods.traffic.two_level import pieces_over, plan_rails
from chorale.synth.topology.spec import parse_topology
from chorale.synth.verify.verify import inspect, verify
from tests.properties import random_cases
from tests.random_fabrics import random_fabric
from tests.reference.full_alltoall_program import full_alltoall_rate
from tests.strategies import networks


@given(st.lists(st.lists(st.integers(0, 2**40), min_size=3, max_size=3), min_size=3, max_size=3), st.integers(1, 40))
def test_chunks_hold_the_amounts_and_less_than_one_chunk_more(rows, largest):
    if not np.where(np.eye(3, dtype=bool), 0, rows).any():
        return
    matrix = traffic_matrix("random", rows)
    for asked in (None, largest):
        chunks = chunk_counts(matrix, asked)
        assert int(chunks.counts.sum()) <= MAX_TOTAL_CHUNKS
        for count, amount in zip(chunks.counts.ravel().tolist(), matrix.amounts.ravel().tolist(), strict=True):
            assert amount <= count * chunks.chunk < amount + chunks.chunk
    assert int(chunk_counts(matrix, largest).counts.max()) == largest


def test_amounts_with_a_common_divisor_are_not_padded_and_the_way_back_is_the_transpose():
    matrix = traffic_matrix("m", [[0, 6000], [9000, 3000]])
    chunks = chunk_counts(matrix)
    assert (chunks.chunk, chunks.counts.tolist()) == (Fraction(3000), [[0, 2], [3, 1]])
    assert matrix.transposed().amounts.tolist() == [[0, 9000], [6000, 3000]]
    assert traffic_matrix("floats", np.array([[0.0, 3.0], [2.0**40, 0.0]])).amounts.tolist() == [[0, 3], [2**40, 0]]
    assert (matrix.mean, matrix.sent.tolist()) == (7500, [[0, 6000], [9000, 0]])


def test_skews_are_the_same_for_the_same_seed_and_even_at_exponent_zero():
    first, again, other = (zipf_matrix(16, 1.2, seed).amounts for seed in (3, 3, 4))
    assert (first == again).all()
    assert not (first == other).all()
    assert sorted(first[0].tolist(), reverse=True)[:3] == [1024, 446, 274]
    assert len(np.unique(zipf_matrix(8, 0, 0).amounts)) == 1
    assert zipf_matrix(64, 8, 0).amounts.min() == 1
    for exponent, ranks in ((-1, 4), (9, 4), (1, 1), (1, 1025)):
        with pytest.raises(InvalidInput):
            zipf_matrix(ranks, exponent, 0)


@pytest.mark.parametrize(
    ("rows", "rule"),
    [
        ([[0, 1], [2]], "a row and a column for each of at least 2 ranks"),
        ([[0]], "a row and a column for each of at least 2 ranks"),
        ([[0, 0.5], [1, 0]], "must be whole numbers"),
        ([[0, float("nan")], [1, 0]], "must be whole numbers"),
        ([[0.0, 1e20], [1, 0]], "must be 0 to 2"),
        ([[0, -1], [1, 0]], "must be 0 to 2\\^40"),
        ([[0, 2**40 + 1], [1, 0]], "must be 0 to 2\\^40"),
        ([[0, 2**70], [1, 0]], "must be 0 to 2\\^40"),
    ],
)
def test_what_is_no_traffic_is_refused(rows, rule):
    with pytest.raises(InvalidInput, match=rule):
        traffic_matrix("bad", rows)


def test_schedules_are_for_some_traffic():
    nothing = traffic_matrix("diagonal", [[5, 0], [0, 5]])
    plan = plan_amounts(parse_topology("complete:2"), nothing)
    assert (plan.time, plan.gap, check_traffic_certificate(plan.topology, certificate_of(plan))) == (0, 0, 0)
    for refused in (lambda: plan_traffic(plan.topology, nothing), lambda: traffic_schedule(plan)):
        with pytest.raises(InvalidInput, match="the traffic matrix sends nothing"):
            refused()
    with pytest.raises(InvalidInput, match="but ring:4 has 4 ranks"):
        plan_traffic(parse_topology("ring:4"), zipf_matrix(5, 1, 0))


def amounts_for(topology, draw_seed):
    """Return random amounts, some of them 0, never all."""
    ranks = topology.compute_count
    amounts = np.random.default_rng(draw_seed).integers(0, 60, (ranks, ranks))
    amounts[amounts < 15] = 0
    amounts[0, 1] += 1
    return amounts


@given(networks(2, 5), st.integers(0, 1000))
@random_cases(15)
def test_bounds_and_flows_meet_the_least_time_of_the_whole_program(topology, seed):
    amounts = amounts_for(topology, seed)
    plan = plan_traffic(topology, traffic_matrix("random", amounts))
    least = 1 / full_alltoall_rate(topology, amounts)
    assert float(plan.bound.time) <= least * (1 + 1e-7)
    assert float(plan.bound.time) >= least * (1 - 1e-4)
    assert least * (1 - 1e-7) <= float(plan.fluid) <= least * 1.02
    assert plan.fluid <= plan.time


@given(networks(2, 6), st.integers(0, 1000), st.integers(0, 1000))
@random_cases(8)
def test_schedules_of_plans_and_of_later_plans_verify_and_take_as_long(topology, seed, later):
    first = plan_traffic(topology, traffic_matrix("first", amounts_for(topology, seed)))
    second = replan(first, traffic_matrix("second", amounts_for(topology, later)), Fraction(1, 50))
    for plan in (first, second):
        check_plan(plan, 1)


@pytest.mark.parametrize("spec", ["mesh:2x3", "a100:1", "hypercube:3"])
def test_skews_are_planned_at_the_bound_and_again_within_half_a_percent(spec):
    topology = parse_topology(spec)
    ranks = topology.compute_count
    plan = plan_traffic(topology, zipf_matrix(ranks, 1.2, 0))
    assert plan.fluid == plan.bound.time
    assert plan.gap < Fraction(1, 1000)
    for seed in (1, 2):
        before, plan = plan, replan(plan, zipf_matrix(ranks, 1.2, seed))
        again = replan(before, zipf_matrix(ranks, 1.2, seed))
        assert traffic_schedule(plan).id == traffic_schedule(again).id
        assert plan.method in ("warm", "prices", "lp", "direct")
        assert 0 <= plan.gap <= Fraction(1, 200)


def check_plan(plan, most_gap, method=None):
    """The certificate proves the bound, and the schedule takes as long as the plan says."""
    assert method in (None, plan.method)
    assert plan.gap <= most_gap
    assert check_traffic_certificate(plan.topology, certificate_of(plan)) == plan.bound.time > 0
    schedule = traffic_schedule(plan)
    assert verify(schedule).cost.time_per_byte / schedule.chunk_part * plan.chunks.chunk == plan.time


@pytest.mark.parametrize("spec", ["torus:4x4", "torus:3x3", "dragonfly:2,1,1"])
def test_plans_of_changed_traffic_need_no_new_flows(spec):
    topology = parse_topology(spec)
    ranks = topology.compute_count
    plan = plan_traffic(topology, zipf_matrix(ranks, 1.2, 0))
    for seed in (1, 2):
        plan = replan(plan, zipf_matrix(ranks, 0.9, seed))
        check_plan(plan, 1 / 500, "warm")


@pytest.mark.parametrize("spec", ["torus:6x6", "mi250:2"])
def test_parts_of_usual_paths_move_until_the_bound_is_near(spec):
    topology = parse_topology(spec)
    check_plan(plan_traffic(topology, zipf_matrix(topology.compute_count, 1.2, 0)), 1 / 1000, "moves")


def test_equal_amounts_are_the_all_to_all():
    topology = parse_topology("mesh:2x3")
    rate = alltoall_rate(topology)
    plan = plan_traffic(topology, traffic_matrix("even", np.full((6, 6), 120)))
    assert plan.bound.time == 120 / rate.upper
    assert plan.fluid == 120 / rate.lower


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("kind", "alltoall-prices"),
        ("prices", [1, 2]),
        ("amounts", [[0, 1]]),
        ("time_lower", "x"),
        ("time_lower", "1000000"),
    ],
)
def test_forged_certificates_are_refused(key, value):
    plan = plan_traffic(parse_topology("ring:4"), zipf_matrix(4, 1, 0))
    with pytest.raises(CheckFailed):
        check_traffic_certificate(plan.topology, {**certificate_of(plan), key: value})


def test_a_directed_ring_leaves_no_choice_of_paths():
    amounts = np.array([[0, 5, 1], [0, 0, 2], [4, 0, 0]])  # links 0>1, 1>2, 2>0
    times = baseline_times(plan_traffic(parse_topology("uniring:1,3"), traffic_matrix("m", amounts)))
    assert times["direct"] == max(5 + 1, 1 + 2, 4)


def test_a_hot_receiver_over_the_rails_of_two_boxes():
    """A NIC of 50 carries 8 x 1000 in 160 over the receiver's rail; over those of the senders each 1000 in 20."""
    amounts = np.zeros((16, 16), dtype=int)
    amounts[:8, 8] = 1000
    times = baseline_times(plan := plan_traffic(parse_topology("h100:2"), traffic_matrix("hot", amounts)))
    assert (plan.time, times["sender_rail"], times["receiver_rail"]) == (20, 20, 160)
    # The second phase of the exchange, from the 7 ranks that relay, is inside the box, at 450.
    assert times["two_level"] == 20 + Fraction(7000, 450)


@pytest.mark.parametrize(("spec", "chunks"), [("h100:2", 1), ("a100:3", None), ("without(h100:2;node=3)", 1)])
def test_plans_are_never_slower_than_rails(spec, chunks):
    """Also with amounts that no common chunk divides, and with chunks so few that rounding costs something."""
    topology = parse_topology(spec)
    amounts = np.random.default_rng(3).integers(0, 10**6, (topology.compute_count,) * 2)
    plan = plan_traffic(topology, traffic_matrix("random", amounts), chunks=chunks)
    times = baseline_times(plan)
    assert plan.time <= min(times[name] for name in ("sender_rail", "receiver_rail", "two_level"))
    assert verify(traffic_schedule(plan)).cost.time_per_byte > 0


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


@pytest.mark.parametrize(
    "spec", ["h100:2", "mi300x:2", "a100:1", "railclos:3,4,25,2", "scaled(h100:2;link=0.3-nic:0.3;factor=1/2)"]
)
def test_plans_hold_what_they_say_and_libraries_are_no_faster(spec):
    topology = parse_topology(spec)
    fabric = rail_fabric(topology)
    for seed in range(6):
        matrix = random_amounts(topology.compute_count, seed)
        plan = plan_rails(fabric, matrix, exact_counts(matrix))
        check_plan(plan, 1)
        assert plan.bound.time <= plan.time <= min(baseline_times(plan).values())
    times = baseline_times(plan_rails(fabric, matrix, ChunkCounts(matrix.amounts, Fraction(1))))
    for name, relays in fabric.usual.items():
        assert fabric.time(fabric.loads_of(*pieces_over(matrix.amounts, *relays))) == times[name]


@pytest.mark.parametrize(("spec", "exponent"), [("h100:8", 0.8), ("nvl72:2", 1.2), ("b200:4", 1.0), ("mi300x:8", 1.5)])
def test_skews_of_experts_are_within_half_a_percent(spec, exponent):
    topology = parse_topology(spec)
    matrix = zipf_matrix(topology.compute_count, exponent, 1)
    for way in (matrix, matrix.transposed()):
        plan = plan_rails(rail_fabric(topology), way, exact_counts(way))
        assert 0 <= plan.gap < Fraction(1, 200)


def test_traffic_inside_boxes_also_goes_over_other_ranks_and_boxes():
    """The limits are those of the whole linear program: a busy rank also uses its NIC, over a box that relays."""
    within = random_amounts(16, 1).amounts * 1000  # chunks so small that they do not matter
    within[8:, :8] = within[:8, 8:] = 0
    single, pair = np.zeros((8, 8), dtype=np.int64), np.zeros((16, 16), dtype=np.int64)
    single[2, 5] = pair[2, 5] = 7000
    for spec, rows, most in (
        ("complete:8", single, 0),
        ("complete:4", within[:4, :4], 1 / 100),
        ("mi300x:2", within, 1 / 100),
        ("h100:2", within, 1 / 200),
        ("h100:2", pair, 0),
        ("mi300x:2", random_amounts(16, 0).amounts, 1 / 100),
    ):
        plan = plan_amounts(parse_topology(spec), traffic_matrix("pairs", rows))
        check_plan(plan, most, "two level")
        assert (plan.chunks.chunk, along(plan, plan.matrix).time) == (1, plan.time)


def test_prices_prove_what_cuts_around_ranks_do_not():
    """Three ranks of a box receive most, some of it from each other; the cut around each of them proves 12 % less."""
    rows = np.array([
        [0, 1, 5, 324, 12, 1, 6, 2], [32, 0, 4, 29, 27, 1, 132, 6], [0, 4, 0, 2, 26, 12, 5, 1],
        [14, 22, 16, 0, 15, 7, 7, 1], [20, 1, 26, 2, 0, 39, 259, 6], [21, 19, 5, 3, 11, 0, 5, 25],
        [4, 7, 422, 8, 24, 13, 0, 2], [95, 1, 7, 99, 37, 51, 5, 0],
    ])  # fmt: skip
    amounts = np.zeros((16, 16), dtype=np.int64)
    amounts[:8, :8] = rows * 1000
    check_plan(plan_amounts(parse_topology("mi300x:2"), traffic_matrix("three", amounts)), 1 / 100)


def test_programs_send_over_the_ranks_that_relay():
    """Rank 0 of a box sends all: a third of it leaves over each NIC, not all of it over its own."""
    amounts = np.zeros((6, 6), dtype=np.int64)
    amounts[0, 3:] = 6
    topology = parse_topology("railclos:2,3,25,1")
    plan = plan_rails(rail_fabric(topology), traffic_matrix("hot", amounts), ChunkCounts(amounts, Fraction(1)))
    program = build_program(verify(traffic_schedule(plan)), LoweringOptions("msccl-xml")).program
    sent = np.zeros_like(amounts)
    for rank, part in enumerate(program.ranks):
        for block in part.blocks:
            if block.send_peer is not None:
                sent[rank, block.send_peer] += sum(step.count for step in block.instructions)
    assert sent[:3, 3:].sum(axis=1).tolist() == [6, 6, 6]


def test_data_enter_the_ranks_of_a_rail_over_their_lanes():
    """Each box has its own popular rank, all on one rail: other boxes relay nothing for them."""
    matrix = zipf_matrix(16, 1.5, 0)
    rows = [np.roll(row, box * 8) for box in (0, 1) for row in matrix.amounts[:8]]
    fabric = rail_fabric(parse_topology("h100:2"))
    check_plan(plan_rails(fabric, traffic_matrix("own", rows), ChunkCounts(np.array(rows), Fraction(1))), 0)


@pytest.mark.parametrize(
    "spec", ["torus:4x4", "ring:8", "mi250:2", "fattree:4", "dragonfly:2,1,1", "without(h100:2;node=3)"]
)
def test_other_networks_are_no_boxes_with_rails(spec):
    assert rail_fabric(parse_topology(spec)) is None


@pytest.mark.parametrize("seed", [23, 155, 382])
def test_a_box_with_other_ways_out_of_ranks_is_none(seed):
    """Here a box was seen in a network with more links than a box has: bounds and direct paths were those of less."""
    topology = random_fabric(seed)
    matrix = random_amounts(topology.compute_count, seed)
    plan = plan_traffic(topology, matrix)
    assert check_traffic_certificate(topology, certificate_of(plan)) <= plan.time <= baseline_times(plan)["direct"]


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
