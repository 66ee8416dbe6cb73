"""The grid: every point once, in any order."""

from __future__ import annotations

from tests.campaigns import small_campaign
from tuner.campaigns.records import Candidate


def test_every_point_has_one_number() -> None:
    space = small_campaign().search.space()
    points = [space[number] for number in range(len(space))]
    assert len(set(points)) == len(space) == 12
    assert points[0] == Candidate("bfb")
    assert all(point in space for point in points)


def test_a_point_outside_is_not_in_the_space() -> None:
    space = small_campaign().search.space()
    assert Candidate("bfb", channels=3) not in space
    assert Candidate("biring") not in space


def test_shuffling_visits_every_point_once_in_seeded_order() -> None:
    space = small_campaign().search.space()
    first, again, other = list(space.shuffled(1)), list(space.shuffled(1)), list(space.shuffled(2))
    assert first == again
    assert first != other
    assert set(first) == set(other) == {space[number] for number in range(len(space))}


def test_the_starts_are_one_per_method_with_preferred_values() -> None:
    assert small_campaign().search.space().starts() == [Candidate("bfb"), Candidate("ring")]
