"""`plan_alltoall` and `Replanner`: arrays in and out, other traffic along a plan, threads."""

from concurrent.futures import ThreadPoolExecutor

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


def test_threads_get_the_plans_that_one_would():
    with ThreadPoolExecutor(4) as threads:
        times = list(threads.map(lambda seed: ch.plan_alltoall(NETWORK, amounts(seed)).time, range(12)))
    assert times == [ch.plan_alltoall(NETWORK, amounts(seed)).time for seed in range(12)]


@pytest.mark.parametrize(
    "traffic", [np.ones((3, 3), int), np.ones((16, 16)), -np.ones((16, 16), int), np.zeros((16, 16), int)]
)
def test_what_is_no_traffic_of_the_network_is_refused(traffic):
    with pytest.raises(ch.ChoraleError):
        ch.plan_alltoall(NETWORK, traffic)
