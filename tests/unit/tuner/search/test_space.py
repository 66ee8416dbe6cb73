"""The grid without what makes no sense: every point once, in any order."""

import pytest

from chorale.tuner.config.runner import RunnerSection, read_section
from chorale.tuner.trials.records import Candidate
from tests.campaigns import small_campaign, space_of


def test_every_point_is_there_once() -> None:
    space = space_of(small_campaign())
    assert len(set(space.points)) == len(space) == 12
    assert space.points[0] == Candidate("bfb")
    assert all(point in space for point in space.points)


def test_a_point_outside_is_not_in_the_space() -> None:
    space = space_of(small_campaign())
    assert Candidate("bfb", channels=3) not in space
    assert Candidate("biring") not in space


def test_shuffling_visits_every_point_once_in_seeded_order() -> None:
    space = space_of(small_campaign())
    first, again, other = list(space.shuffled(1)), list(space.shuffled(1)), list(space.shuffled(2))
    assert first == again
    assert first != other
    assert set(first) == set(other) == set(space.points)


def test_the_starts_are_one_per_method_with_preferred_values() -> None:
    assert space_of(small_campaign()).starts() == [Candidate("bfb"), Candidate("ring")]


def test_parameters_that_do_not_matter_make_no_points() -> None:
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


def test_buffers_matter_on_runners_that_have_them() -> None:
    search = {"methods": ["bfb"], "buffer_bytes": ["1MiB", "4MiB"]}
    assert len(space_of(small_campaign(search=search))) == 2
    assert len(space_of(small_campaign(search=search, runner={"kind": "local"}))) == 1


def test_protocols_matter_on_gpus() -> None:
    search = {"methods": ["ring"], "protocol": ["LL", "LL128", "Simple"]}
    points = space_of(small_campaign(search=search, runner={"kind": "msccl"})).points
    assert [point.protocol for point in points] == ["LL", "LL128", "Simple"]


@pytest.mark.parametrize(("runtime", "dialect"), [("msccl", "msccl-xml"), ("rccl", "msccl-executor-xml")])
def test_limits_are_those_of_the_dialect_that_the_runner_executes(runtime: str, dialect: str) -> None:
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


def test_sizes_that_a_runtime_does_not_serve_leave_nothing() -> None:
    wide = small_campaign(sizes=["1MiB", "2GiB"], runner={"kind": "msccl"})
    assert set(space_of(wide).refused) == {"msccl-xml serves at most 2147483647 bytes, not 2147483648"}
    assert len(space_of(wide.model_copy(update={"runner": on("executor")}))) == 12


def test_a_network_may_have_more_ranks_than_programs() -> None:
    space = space_of(small_campaign(topology="ring:1030", runner={"kind": "msccl"}))
    assert set(space.refused) == {"msccl-xml has programs of at most 1024 ranks, not 1030"}


def on(runtime: str) -> RunnerSection:
    return read_section({"kind": "msccl", "msccl": {"runtime": runtime}})


def test_what_cannot_work_is_ruled_out_with_the_reason() -> None:
    space = space_of(small_campaign(search={"methods": ["bfb"], "instances": [1, 2000], "chunks": [1, 2]}))
    assert space.points == (Candidate("bfb", chunks=1), Candidate("bfb", chunks=2))
    [(reason, count)] = space.refused.items()
    assert reason == "instances must be between 1 and 1024, got 2000; choose a value in this range"
    assert count == 2


def test_chunks_that_no_size_can_be_cut_into_are_ruled_out() -> None:
    search = {"methods": ["bfb"], "chunks": [64, 65, 1024, 5000]}
    space = space_of(small_campaign(search=search, sizes=["4KiB"]))
    assert [point.chunks for point in space.points] == [64, 65]  # 4 ranks: 65 chunks pad 4096 bytes to 4160
    assert sum(space.refused.values()) == 2


def test_how_plans_move_data_matters_where_programs_become_plans() -> None:
    search = {"methods": ["bfb"], "protocol": ["Simple", "LL"], "reads": [False, True], "block_group": [1, 2]}
    plans = {"kind": "simulated", "target": "mscclpp-json", "link_mbps": 100}
    assert len(space_of(small_campaign(search=search))) == 1
    points = space_of(small_campaign(search=search, runner=plans)).points
    assert len(points) == 8
    assert Candidate("bfb", protocol="LL", block_group=2) in points


def test_a_share_of_a_pipeline_is_ruled_out() -> None:
    search = {"methods": ["bfb"], "pipeline_bytes": [0, "64KiB"], "block_group": [1, 2]}
    plans = {"kind": "simulated", "target": "mscclpp-json", "link_mbps": 100}
    space = space_of(small_campaign(search=search, runner=plans))
    assert len(space.points) == 3
    assert any("a plan has either pipelines or block groups, not both" in reason for reason in space.refused)


def test_ids_of_other_candidates_stay_as_they_were() -> None:
    assert "reads" not in Candidate("bfb").identity
    assert Candidate("bfb").id != Candidate("bfb", reads=True).id
