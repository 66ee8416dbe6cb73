"""The least time of a campaign follows from the bound of its collective and the rate of its links."""

from __future__ import annotations

import pytest

from chorale.tuner.files.topology_specs import load_topology
from chorale.tuner.launch.plan import campaign_plan, min_measuring_s
from tests.campaigns import small_campaign


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


@pytest.mark.parametrize(("runner", "spec"), CASES)
def test_without_a_rate_nothing_is_said(runner, spec):
    assert min_measuring_s(small_campaign(runner=runner), load_topology(spec), 6) is None
