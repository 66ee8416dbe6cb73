"""`plan_alltoall` and `Replanner`: arrays in and out, other traffic along a plan, threads."""

import math
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import numpy as np
import pytest

import chorale as ch

NETWORK = ch.topology("h100:2")


def amounts(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 10**6, (16, 16))


def test_pieces_are_the_traffic_and_the_schedule_takes_as_long():
    plan = ch.plan_alltoall(NETWORK, amounts(1))
    assert delivered(plan).tolist() == (amounts(1) * ~np.eye(16, dtype=bool)).tolist()
    schedule = plan.schedule()
    assert schedule.cost.time_per_byte / schedule.schedule.chunk_part == plan.time >= plan.bound
    assert plan.seconds() == pytest.approx(float(plan.time) / 1e9)


def delivered(plan) -> np.ndarray:
    sums = np.zeros((16, 16), dtype=np.int64)
    np.add.at(sums, (plan.pieces.source, plan.pieces.target), plan.pieces.amount)
    return sums


def test_other_traffic_goes_in_the_same_proportions():
    plan = ch.plan_alltoall(NETWORK, amounts(1))
    assert plan.with_traffic(amounts(1)).time == plan.time
    assert plan.with_traffic(3 * amounts(1)).time == 3 * plan.time
    other = plan.with_traffic(amounts(2))
    assert delivered(other).tolist() == (amounts(2) * ~np.eye(16, dtype=bool)).tolist()
    assert other.time >= ch.plan_alltoall(NETWORK, amounts(2)).time
    assert ch.verify(other.schedule()).cost.time_per_byte > 0
    ring = ch.plan_alltoall("ring:4", amounts(3)[:4, :4]).with_traffic(amounts(4)[:4, :4])
    assert ring.time >= ring.bound
    single = np.zeros((16, 16), int)
    single[0, 15] = 1  # most pieces of the plan have no part of it
    assert plan.with_traffic(single).schedule().cost.time_per_byte > 0


def test_a_replanner_plans_again_only_where_it_pays():
    skewed = amounts(1)
    skewed[:, 3] *= 40
    careful, eager = ch.Replanner(NETWORK, cost_s=1.0), ch.Replanner(NETWORK, cost_s=0.0)
    for traffic in (amounts(1), amounts(1) + 1, skewed):
        kept, new = careful(traffic), eager(traffic)
        assert new.time <= kept.time
    assert careful.plans == 1
    assert eager.plans >= 2
    assert new.time < kept.time


@pytest.mark.parametrize("network", [NETWORK, "ring:16"])
def test_a_batch_without_tokens_has_a_plan_that_takes_no_time(network):
    nothing = np.zeros((16, 16), int)
    plan = ch.plan_alltoall(network, nothing)
    assert (plan.time, plan.bound, plan.gap) == (0, 0, 0)
    assert plan.with_traffic(amounts(1)).time == ch.plan_alltoall(network, amounts(1)).time
    assert plan.with_traffic(amounts(1)).with_traffic(nothing).time == 0
    assert ch.plan_dispatch(network, np.zeros((0, 8), int)).time == 0
    replanner = ch.Replanner(NETWORK, cost_s=0)
    assert (replanner(nothing).time, replanner.plans, len(replanner(nothing).pieces.amount)) == (0, 0, 0)


def test_threads_get_the_plans_that_one_would():
    with ThreadPoolExecutor(4) as threads:
        times = list(threads.map(lambda seed: ch.plan_alltoall(NETWORK, amounts(seed)).time, range(12)))
    assert times == [ch.plan_alltoall(NETWORK, amounts(seed)).time for seed in range(12)]


@pytest.mark.parametrize(
    "wrong", [{"cost_s": math.nan}, {"cost_s": "1"}, {"cost_s": -1.0}, {"cost_s": 0, "batches": 0}]
)
def test_a_replanner_refuses_costs_that_are_none(wrong):
    with pytest.raises(ch.ChoraleError, match="batches" if "batches" in wrong else "cost_s"):
        ch.Replanner(NETWORK, **wrong)
    with pytest.raises(ch.ChoraleError, match="have none"):  # and not in the middle of a training
        ch.Replanner("ring:4", cost_s=0)


@pytest.mark.parametrize("spec", ["h100:2", "uniring:1,4"])
def test_schedules_of_given_sizes_have_a_gap_and_a_certificate(spec):
    ranks = ch.topology(spec).compute_count
    plan = ch.plan_alltoall(spec, amounts(1)[:ranks, :ranks])
    tokens = ch.plan_dispatch(spec, amounts(2)[:, :3] % ranks)
    for planned, schedule in ((plan, plan.schedule()), (tokens, ch.verify(tokens.schedule()))):
        assert schedule.gap == planned.gap
        assert schedule.certificate["time_lower"]
        assert "above the proven bound" in repr(schedule) or planned.gap == 0


@pytest.mark.parametrize("spec", ["h100:2", "mi300x:2"])
def test_amounts_above_the_chunks_of_a_schedule_have_one_too(spec):
    amounts = np.full((16, 16), 2**40)
    assert ch.plan_alltoall(spec, amounts).schedule().cost.time_per_byte > 0
    amounts[0, 9] = 1
    plan = ch.plan_alltoall(spec, amounts)
    verified = plan.schedule()
    assert plan.time <= verified.cost.time_per_byte / verified.schedule.chunk_part * Fraction(2**40, 2**31 - 1)


class NoArray:
    """Like a tensor of torch that NumPy cannot read."""

    def __array__(self, *_: object, **__: object) -> np.ndarray:
        raise TypeError("Got unsupported ScalarType BFloat16")


@pytest.mark.parametrize(
    ("experts", "more", "what"),
    [
        ([[0.5]], {}, "experts"),
        ([[np.nan]], {}, "experts"),
        ([["x"]], {}, "experts"),
        ([[2**62]], {}, "experts"),
        (np.full((4, 2), 2**64 - 1, np.uint64), {}, "experts"),
        (NoArray(), {}, "experts"),
        ([[1, 2], [3]], {}, "experts"),
        (np.ones((2, 2, 2), int), {}, "experts"),
        ([[9]], {"sources": [0.5]}, "sources"),
        ([[9]], {"placement": [[1, 2], [3]]}, "placement"),
        ([[9]], {"token_bytes": 1.5}, "token_bytes"),
    ],
)
def test_what_is_no_routing_is_refused(experts, more, what):
    with pytest.raises(ch.ChoraleError, match=f"{what} must"):
        ch.plan_dispatch(NETWORK, experts, **more)


@pytest.mark.parametrize(
    "traffic",
    [np.ones((3, 3), int), np.full((16, 16), 0.5), -np.ones((16, 16), int), NoArray()],
)
def test_what_is_no_traffic_of_the_network_is_refused(traffic):
    with pytest.raises(ch.ChoraleError):
        ch.plan_alltoall(NETWORK, traffic)
