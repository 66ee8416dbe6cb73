"""The ways of data: trees add up to whole shards, and lead from where data lie to everyone."""

from fractions import Fraction

import pytest

from chorale.synth.collective import parse_collective
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.methods.alltoall.schedule import alltoall_schedule
from chorale.synth.methods.catalog import synthesize
from chorale.synth.schedule.schedule import Schedule
from chorale.synth.schedule.traffic import DataPath, data_paths
from chorale.synth.topology.spec import parse_topology


def schedule_of(method: str, spec: str, collective: str, root: int = 0) -> Schedule:
    wanted = parse_collective(collective, root)
    return synthesize(method, parse_topology(spec), wanted, None, SerialExecutor()).schedule


def ends(schedule: Schedule, way: DataPath) -> list[tuple[int, int]]:
    links = schedule.topology.links
    sources, targets = schedule.routes.sources(links), schedule.routes.destinations(links)
    return list(zip(sources[way.route].tolist(), targets[way.route].tolist(), strict=True))


@pytest.mark.parametrize(
    ("spec", "collective"), [("a100:2", "allgather"), ("ring:5", "broadcast"), ("torus:3x3", "allgather")]
)
def test_trees_reach_every_rank_once_and_hold_all_data(spec, collective):
    schedule = schedule_of("forest", spec, collective, root=0)
    ranks = schedule.topology.compute_count
    for rank in (0, ranks - 1):
        ways = data_paths(schedule, rank)
        assert sum(way.share for way in ways) == 1
        root = 0 if collective == "broadcast" else rank
        for way in ways:
            assert not way.reduces
            assert sorted(target for _, target in ends(schedule, way)) == [one for one in range(ranks) if one != root]
            reached = {root}
            for source, target in ends(schedule, way):  # by depth: whoever sends has been reached
                assert source in reached
                reached.add(target)


def test_sums_come_first_and_lead_to_the_rank():
    schedule = schedule_of("forest-phases", "ring:4", "allreduce")
    ways = data_paths(schedule, 2)
    assert [way.reduces for way in ways] == sorted((way.reduces for way in ways), reverse=True)
    assert sum(way.share for way in ways if way.reduces) == sum(way.share for way in ways if not way.reduces) == 1
    for way in ways:
        if way.reduces:
            assert sorted(source for source, _ in ends(schedule, way)) == [0, 1, 3]


def test_chunks_over_parallel_links_are_one_tree():
    schedule = schedule_of("forest", "mi250:1", "allgather")
    ways = data_paths(schedule, 0)
    drawn = {(way.reduces, tuple(way.step.tolist()), tuple(ends(schedule, way))) for way in ways}
    assert len(drawn) == len(ways) <= schedule.trees_per_root


def test_stepped_data_take_one_way():
    schedule = schedule_of("ring", "ring:4", "allreduce")
    ways = data_paths(schedule, 0)
    assert [(way.reduces, way.share) for way in ways] == [(True, Fraction(1)), (False, Fraction(1))]
    assert [way.step.tolist() for way in ways] == [[0, 1, 2], [3, 4, 5]]


def test_data_of_an_alltoall_leave_their_rank():
    schedule = alltoall_schedule(parse_topology("ring:4"))
    (way,) = data_paths(schedule, 1)
    assert not way.reduces
    first = [pair for step, pair in zip(way.step.tolist(), ends(schedule, way), strict=True) if step == 0]
    assert {source for source, _ in first} == {1}
    assert {target for _, target in ends(schedule, way)} == {0, 2, 3}
