"""From what a job was recorded to call to campaigns: one for each collective, sizes weighted by time."""

import math

import pytest

from chorale.job.record import CallCount, CallKey, Record
from chorale.synth.errors import InvalidInput
from chorale.tuner.config.campaign_file import RecordedJob, coverage_lines, recorded_campaigns
from chorale.tuner.files.topology_specs import load_topology
from chorale.tuner.launch.predictions import campaign_on
from chorale.tuner.trials.records import Candidate, SizeResult, mean_speedup
from tests.campaigns import complete, small_campaign

ALL = {
    CallKey("allreduce", "float32", None, None, 2**20): CallCount(10, 4.0),
    CallKey("allreduce", "bfloat16", None, None, 2**20): CallCount(10, 2.0),
    CallKey("allreduce", "float32", None, None, 2**12): CallCount(10, 2.0),
    CallKey("allgather", "float32", None, None, 2**16): CallCount(1, 1.0),
    CallKey("broadcast", "float32", None, 3, 2**16): CallCount(1, 0.5),
    CallKey("allreduce", "float32", (0, 1), None, 2**12): CallCount(1, 0.5),
}
JOB = RecordedJob.of(Record(8, ALL))
BASE = {"topology": "hypercube:3", "runner": {"kind": "simulated"}}


def test_each_collective_has_a_campaign_weighted_by_time() -> None:
    first, second = recorded_campaigns(JOB, "my job", BASE, ["budget.trials=3"])
    assert (first.name, first.collective, first.sizes) == ("my-job-allreduce", "allreduce", [2**12, 2**20])
    assert first.size_weights == {2**12: 0.25, 2**20: 0.75}
    assert (second.name, second.sizes, second.size_weights) == ("my-job-allgather", [2**16], {2**16: 1.0})
    assert {campaign.budget.trials for campaign in (first, second)} == {3}


def test_what_is_not_covered_is_said() -> None:
    lines = list(coverage_lines(JOB, recorded_campaigns(JOB, "job", BASE, [])))
    assert lines[0] == "campaigns cover 90% of the 10 s that the job spent in collectives"
    assert "  job-allreduce: 80%, by size: 4KiB 25%, 1MiB 75%" in lines
    assert "  not covered: 5%, broadcast from rank 3, and not from rank 0" in lines
    assert "  not covered: 5%, a group of 2 ranks" in lines


def test_a_record_without_such_calls_is_refused() -> None:
    with pytest.raises(InvalidInput, match="the record has no collective of all ranks that can be"):
        recorded_campaigns(RecordedJob.of(Record(8, dict([list(ALL.items())[4]]))), "job", BASE, [])


@pytest.mark.parametrize(("collective", "method"), [("broadcast", "forest"), ("alltoall", "alltoall")])
def test_collectives_with_methods_of_their_own_are_tuned_by_these(collective: str, method: str) -> None:
    root = 0 if collective == "broadcast" else None
    record = Record(8, {CallKey(collective, "float32", None, root, 2**16): CallCount(1, 0.5)})
    (campaign,) = recorded_campaigns(RecordedJob.of(record), "job", BASE, [])
    campaign = campaign_on(campaign, load_topology(campaign.topology))
    assert campaign.collective == collective
    assert method in campaign.search.methods
    assert campaign.baselines != ["ring"]


def test_weights_enter_the_objective() -> None:
    sizes = [SizeResult(1, 1, (1.0,), {"ring": (8.0,)}, weight) for weight in (3.0,)]
    sizes.append(SizeResult(2, 2, (1.0,), {"ring": (0.5,)}, 1.0))
    assert mean_speedup(sizes) == pytest.approx(math.exp((3 * math.log(8) + math.log(0.5)) / 4))
    trial = complete(Candidate("bfb"))
    assert trial.speedup == pytest.approx(math.sqrt(math.prod(size.speedup for size in trial.sizes)))


def test_weights_are_of_all_sizes() -> None:
    with pytest.raises(ValueError, match="one number for each of the 2 sizes"):
        small_campaign(weights=[1.0])
