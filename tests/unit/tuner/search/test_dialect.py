"""Programs of a campaign are in the dialect of its runner, within what its devices run at once."""

from typing import Any

import pytest

from chorale.synth.build.build import build
from chorale.synth.build.request import BuildResult
from chorale.synth.lowering.lower import limits_of
from chorale.synth.lowering.options import LoweringOptions
from chorale.tuner.config.runner import read_section
from chorale.tuner.files.topology_specs import load_topology
from chorale.tuner.launch.loop import RequestBuilder
from chorale.tuner.search.space import is_native
from chorale.tuner.trials.records import Candidate
from tests.campaigns import small_campaign


@pytest.mark.parametrize(
    ("section", "target", "sm_count", "blocks"),
    [
        ({"kind": "local"}, "oneccl-xml", None, 65536),
        ({"kind": "oneccl"}, "oneccl-xml", None, 65536),
        ({"kind": "msccl"}, "msccl-xml", None, 108),
        ({"kind": "msccl", "msccl": {"runtime": "executor", "sm_count": 132}}, "msccl-executor-xml", 132, 132),
        ({"kind": "msccl", "msccl": {"runtime": "rccl", "sm_count": 104}}, "msccl-executor-xml", 64, 64),
        ({"kind": "msccl", "msccl": {"runtime": "rccl", "sm_count": 16}}, "msccl-executor-xml", 16, 16),
    ],
)
def test_the_runner_decides(section: dict[str, Any], target: str, sm_count: int | None, blocks: int) -> None:
    lowering = read_section(section).config.lowering()
    assert lowering == LoweringOptions(target, sm_count=sm_count)
    assert limits_of(lowering).resident_threadblocks == blocks


def test_programs_of_a_campaign_are_of_one_placement() -> None:
    runner = {"kind": "msccl", "msccl": {"in_place": False}}
    campaign = small_campaign(collective="allgather", runner=runner)
    requests = RequestBuilder(campaign, load_topology(campaign.topology))
    for request in (requests.build(Candidate("bfb")), *requests.baseline_builds().values()):
        built = build(request)
        assert isinstance(built, BuildResult)
        assert not built.program.in_place
        assert is_native(campaign.runner, built.program)


def test_candidates_and_baselines_are_of_one_dialect() -> None:
    runner = {"kind": "msccl", "msccl": {"runtime": "executor", "sm_count": 80}}
    campaign = small_campaign(runner=runner, baselines=["library:nccl", "ring"])
    requests = RequestBuilder(campaign, load_topology(campaign.topology))
    candidate = Candidate("bfb", channels=2, instances=3, protocol="LL128")
    wanted = LoweringOptions("msccl-executor-xml", 2, 3, "LL128", sm_count=80)
    assert requests.build(candidate).lowering == wanted
    [ring] = requests.baseline_builds().values()
    assert ring.lowering == LoweringOptions("msccl-executor-xml", sm_count=80)
