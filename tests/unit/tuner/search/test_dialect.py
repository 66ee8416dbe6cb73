"""Programs of a campaign are in the dialect of its runner, within what its devices run at once."""

from typing import Any

import pytest

from chorale.synth.build.build import build
from chorale.synth.build.request import BuildResult
from chorale.synth.lowering.options import LoweringOptions
from chorale.tuner.config.runner import read_section
from chorale.tuner.files.topology_specs import load_topology
from chorale.tuner.launch.loop import RequestBuilder
from chorale.tuner.search.space import LoweringTarget, lowering_target
from chorale.tuner.trials.records import Candidate
from tests.campaigns import small_campaign


@pytest.mark.parametrize(
    ("section", "dialect", "blocks"),
    [
        ({"kind": "local"}, LoweringTarget("oneccl-xml"), 65536),
        ({"kind": "oneccl"}, LoweringTarget("oneccl-xml"), 65536),
        ({"kind": "msccl"}, LoweringTarget("msccl-xml"), 108),
        (
            {"kind": "msccl", "msccl": {"runtime": "executor", "sm_count": 132}},
            LoweringTarget("msccl-executor-xml", 132),
            132,
        ),
        (
            {"kind": "msccl", "msccl": {"runtime": "rccl", "sm_count": 104}},
            LoweringTarget("msccl-executor-xml", 64),
            64,
        ),
        ({"kind": "msccl", "msccl": {"runtime": "rccl", "sm_count": 16}}, LoweringTarget("msccl-executor-xml", 16), 16),
    ],
)
def test_the_runner_decides(section: dict[str, Any], dialect: LoweringTarget, blocks: int) -> None:
    assert lowering_target(read_section(section)) == dialect
    assert dialect.limits.resident_threadblocks == blocks


def test_programs_of_a_campaign_are_of_one_placement() -> None:
    runner = {"kind": "msccl", "msccl": {"in_place": False}}
    campaign = small_campaign(collective="allgather", runner=runner)
    requests = RequestBuilder(campaign, load_topology(campaign.topology))
    for request in (requests.build(Candidate("bfb")), *requests.baseline_builds().values()):
        built = build(request)
        assert isinstance(built, BuildResult)
        assert not built.program.in_place
        assert requests.target.accepts(built.program)
        assert not LoweringTarget("msccl-xml").accepts(built.program)


def test_candidates_and_baselines_are_of_one_dialect() -> None:
    runner = {"kind": "msccl", "msccl": {"runtime": "executor", "sm_count": 80}}
    campaign = small_campaign(runner=runner, baselines=["library:nccl", "ring"])
    requests = RequestBuilder(campaign, load_topology(campaign.topology))
    candidate = Candidate("bfb", channels=2, instances=3, protocol="LL128")
    wanted = LoweringOptions("msccl-executor-xml", 2, 3, "LL128", sm_count=80)
    assert requests.build(candidate).lowering == wanted
    [ring] = requests.baseline_builds().values()
    assert ring.lowering == LoweringOptions("msccl-executor-xml", sm_count=80)
