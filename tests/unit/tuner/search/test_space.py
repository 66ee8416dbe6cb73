"""The grid without what makes no sense, and the dialect of its programs."""

import pytest

from chorale.synth.build.build import build
from chorale.synth.lowering.lower import limits_of
from chorale.synth.lowering.options import LoweringOptions
from chorale.tuner.config.values import read_section
from chorale.tuner.files.schedule_files import load_topology
from chorale.tuner.launch.loop import RequestBuilder
from chorale.tuner.search.space import is_native
from chorale.tuner.trials.records import Candidate
from tests.campaigns import small_campaign, space_of

PLANS = {"kind": "simulated", "target": "mscclpp-json", "link_mbps": 100}


def test_a_space_has_every_point_once_in_any_order():
    space = space_of(small_campaign())
    assert len(set(space.points)) == len(space) == 12
    assert space.points[0] == Candidate("bfb")
    assert all(point in space for point in space.points)
    assert Candidate("bfb", channels=3) not in space
    assert Candidate("biring") not in space
    first, again, other = list(space.shuffled(1)), list(space.shuffled(1)), list(space.shuffled(2))
    assert first == again
    assert first != other
    assert set(first) == set(other) == set(space.points)
    assert space.starts() == [Candidate("bfb"), Candidate("ring")]


def test_parameters_make_points_where_they_matter():
    """Rings pack no trees and have no pipelines to deepen, forests obey no chunks; protocols change nothing here."""
    search = {
        "methods": ["ring", "forest"],
        "k": [1, 2],
        "chunks": [3, 4],
        "depth": [1, 8],
        "protocol": ["LL", "Simple"],
    }
    points = space_of(small_campaign(search=search)).points
    rings = [Candidate("ring", chunks=chunks) for chunks in (3, 4)]
    forests = [Candidate("forest", k=k, depth=depth) for k in (1, 2) for depth in (1, 8)]
    assert points == (*rings, *forests)
    search = {"methods": ["bfb"], "buffer_bytes": ["1MiB", "4MiB"]}
    assert len(space_of(small_campaign(search=search))) == 2
    assert len(space_of(small_campaign(search=search, runner={"kind": "local"}))) == 1
    search = {"methods": ["ring"], "protocol": ["LL", "LL128", "Simple"]}
    points = space_of(small_campaign(search=search, runner={"kind": "msccl"})).points
    assert [point.protocol for point in points] == ["LL", "LL128", "Simple"]
    search = {"methods": ["bfb"], "protocol": ["Simple", "LL"], "reads": [False, True], "block_group": [1, 2]}
    assert len(space_of(small_campaign(search=search))) == 1
    points = space_of(small_campaign(search=search, runner=PLANS)).points
    assert len(points) == 8
    assert Candidate("bfb", protocol="LL", block_group=2) in points
    assert "reads" not in Candidate("bfb").identity
    search = {"methods": ["bfb"], "protocol": ["Simple", "LL"], "vector_bytes": [8, 16]}
    points = space_of(small_campaign(search=search, runner=PLANS)).points
    assert [(each.protocol, each.vector_bytes) for each in points] == [("Simple", 8), ("Simple", 16), ("LL", 16)]
    assert Candidate("bfb").id != Candidate("bfb", reads=True).id


@pytest.mark.parametrize(("runtime", "dialect"), [("msccl", "msccl-xml"), ("rccl", "msccl-executor-xml")])
def test_limits_are_those_of_the_dialect_that_the_runner_executes(runtime, dialect):
    search = {"methods": ["bfb"], "instances": [1, 64], "chunks": [1, 10_000]}
    sizes = ["256KiB", "16MiB"]
    on_gpus = {"kind": "msccl", "msccl": {"runtime": runtime}}
    space = space_of(small_campaign(search=search, sizes=sizes, runner=on_gpus))
    assert space.points == (Candidate("bfb", chunks=1),)
    assert space.refused == {
        f"{dialect} has 32 channels, and 64 instances need as many": 2,
        f"{dialect} has 32768 chunks, and this needs at least 40000": 1,
    }
    on_cpus = space_of(small_campaign(search=search, sizes=sizes, runner={"kind": "oneccl"}))
    assert {Candidate("bfb", chunks=1, instances=64), Candidate("bfb", chunks=10_000)} < set(on_cpus.points)


def test_what_cannot_work_is_ruled_out():
    executor = read_section({"kind": "msccl", "msccl": {"runtime": "executor"}})
    wide = small_campaign(sizes=["1MiB", "2GiB"], runner={"kind": "msccl"})
    assert set(space_of(wide).refused) == {"msccl-xml supports at most 2147483647 bytes, not 2147483648"}
    assert len(space_of(wide.model_copy(update={"runner": executor}))) == 12
    space = space_of(small_campaign(topology="ring:1030", runner={"kind": "msccl"}))
    assert set(space.refused) == {"msccl-xml has programs of at most 1024 ranks, not 1030"}
    space = space_of(small_campaign(search={"methods": ["bfb"], "instances": [1, 2000], "chunks": [1, 2]}))
    assert space.points == (Candidate("bfb", chunks=1), Candidate("bfb", chunks=2))
    assert space.refused == {"instances must be between 1 and 1024, got 2000; choose a value in this range": 2}
    search = {"methods": ["bfb"], "chunks": [64, 65, 1024, 5000]}
    space = space_of(small_campaign(search=search, sizes=["4KiB"]))
    assert [point.chunks for point in space.points] == [64, 65]  # 4 ranks: 65 chunks pad 4096 bytes to 4160
    assert sum(space.refused.values()) == 2
    search = {"methods": ["bfb"], "pipeline_bytes": [0, "64KiB"], "block_group": [1, 2]}
    space = space_of(small_campaign(search=search, runner=PLANS))
    assert len(space.points) == 3
    assert any("a plan has either pipelines or block groups, not both" in reason for reason in space.refused)


def test_the_runner_decides():
    for section, target, sm_count, blocks in (
        ({"kind": "local"}, "oneccl-xml", None, 65536),
        ({"kind": "oneccl"}, "oneccl-xml", None, 65536),
        ({"kind": "msccl"}, "msccl-xml", None, 108),
        ({"kind": "msccl", "msccl": {"runtime": "executor", "sm_count": 132}}, "msccl-executor-xml", 132, 132),
        ({"kind": "msccl", "msccl": {"runtime": "rccl", "sm_count": 104}}, "msccl-executor-xml", 64, 64),
        ({"kind": "msccl", "msccl": {"runtime": "rccl", "sm_count": 16}}, "msccl-executor-xml", 16, 16),
    ):
        lowering = read_section(section).config.lowering()
        assert lowering == LoweringOptions(target, sm_count=sm_count)
        assert limits_of(lowering).resident_threadblocks == blocks


def test_programs_of_a_campaign_are_of_one_placement_and_dialect():
    runner = {"kind": "msccl", "msccl": {"in_place": False}}
    campaign = small_campaign(collective="allgather", runner=runner)
    requests = RequestBuilder(campaign, load_topology(campaign.topology))
    for request in (requests.build(Candidate("bfb")), *requests.baseline_builds().values()):
        built = build(request)
        assert not built.program.in_place
        assert is_native(campaign.runner, built.program)
    runner = {"kind": "msccl", "msccl": {"runtime": "executor", "sm_count": 80}}
    campaign = small_campaign(runner=runner, baselines=["library:nccl", "ring"])
    requests = RequestBuilder(campaign, load_topology(campaign.topology))
    candidate = Candidate("bfb", channels=2, instances=3, protocol="LL128")
    wanted = LoweringOptions("msccl-executor-xml", 2, 3, "LL128", sm_count=80)
    assert requests.build(candidate).lowering == wanted
    [ring] = requests.baseline_builds().values()
    assert ring.lowering == LoweringOptions("msccl-executor-xml", sm_count=80)
