"""What a launch costs besides measuring, by a clock that ticks once per reading."""

from itertools import count

import pytest

from chorale.tuner.files.topology_specs import load_topology
from chorale.tuner.launch.plan import campaign_plan, min_measuring_s
from chorale.tuner.launch.progress import MEASURING, PREPARING, SAVE, SEARCH, Overhead
from tests.campaigns import small_campaign


def test_seconds_become_milliseconds_per_trial() -> None:
    effort = Overhead(count().__next__)
    for _ in range(4):
        with effort.timed(SEARCH):
            pass
    with effort.timed(SAVE):
        pass
    effort.trials = 2
    effort.elapsed_s = 30.0
    effort.cpu_s = 7.0
    effort.add_work(MEASURING, 15.0, 3.0)
    effort.add_work(MEASURING, 5.0, 1.0)
    effort.add_work(PREPARING, 6.0, 5.0)
    assert effort.document(tracking_s=3.0) == {
        "trials": 2,
        "ours_ms": 4000.0,
        "cpu_ms": 3500.0,
        "stages_ms": {"search": 2000.0, "save": 500.0, "mlflow": 1500.0},
        "measuring_ms": 10000.0,
        "preparing_ms": 3000.0,
        "measuring_cpu_ms": 2000.0,
        "preparing_cpu_ms": 2500.0,
        "beside_measuring_ms": 5000.0,
    }


def test_a_ring_of_four_at_a_rate():
    # Allreduce moves 3/4 of the vector through each of two links per rank, twice: 3/4 of the vector's time on a link.
    campaign = small_campaign(runner={"kind": "local", "link_mbps": 8}, baselines=["ring"], repeats=3)
    vector_s = (4096 + 65536) / 1e6
    expected = 6 * 4 * 2 * vector_s * 3 / 4
    assert min_measuring_s(campaign, load_topology("ring:4"), 6) == pytest.approx(expected)
    assert campaign_plan(campaign, load_topology("ring:4"))["least_measuring_seconds"] == pytest.approx(expected)


CASES = [
    ({"kind": "simulated", "link_mbps": 8}, "ring:4"),
    ({"kind": "local"}, "ring:4"),
    ({"kind": "local", "link_mbps": 8}, "a100:2"),
]
