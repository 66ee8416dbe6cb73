"""The next point: near what was good, never one that is taken, the same for the same seed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from chorale.tuner.search.size_model import AcquisitionOptimizer
from chorale.tuner.trials.records import Candidate

SIZES = [2**10, 2**14, 2**18]
POINTS = [Candidate(method, chunks=chunks) for method in ("a", "b") for chunks in (1, 2, 4, 8, 16, 32)]


def gain(point: Candidate) -> NDArray[np.float64]:
    """Method a loses everywhere; of b few chunks are good at small sizes and many at large ones."""
    chunks = np.log2(point.chunks or 1)
    return np.array([0.5 - abs(chunks - best) / 4 for best in (0, 2.5, 5)]) - (1.0 if point.method == "a" else 0.0)


def tried(choice: AcquisitionOptimizer, count: int) -> list[Candidate]:
    gains = {POINTS[0]: gain(POINTS[0]), POINTS[6]: gain(POINTS[6])}
    while len(gains) < count:
        point = choice.next(gains, [], [])
        assert point not in gains
        gains[point] = gain(point)
    return list(gains)


def test_every_size_gets_its_best_point_soon() -> None:
    for seed in range(5):
        first = tried(AcquisitionOptimizer(POINTS, SIZES, False, seed), 7)
        best = np.max([gain(point) for point in first], axis=0)
        assert np.max(np.max([gain(point) for point in POINTS], axis=0) - best) < 0.15


def test_one_point_for_all_sizes_is_found_by_its_mean() -> None:
    for seed in range(5):
        first = tried(AcquisitionOptimizer(POINTS, SIZES, True, seed), 6)
        best = max(gain(point).mean() for point in first)
        assert best == max(gain(point).mean() for point in POINTS)


def test_in_the_end_every_point_was_tried() -> None:
    assert set(tried(AcquisitionOptimizer(POINTS, SIZES, False, 0), len(POINTS))) == set(POINTS)


def test_points_under_way_are_not_chosen_and_failures_keep_the_search_away() -> None:
    gains = {point: gain(point) for point in POINTS[:2]}
    busy, failed = POINTS[2:8], POINTS[8:11]
    assert AcquisitionOptimizer(POINTS, SIZES, False, 0).next(gains, failed, busy) == POINTS[11]


def test_equal_seeds_choose_equally() -> None:
    runs = [tried(AcquisitionOptimizer(POINTS, SIZES, False, 3), len(POINTS)) for _ in range(2)]
    assert runs[0] == runs[1]


def test_a_size_that_counts_more_gets_its_best_point_first() -> None:
    heavy = SIZES.index(2**18)
    weights = [1e-6 if index != heavy else 1.0 for index in range(len(SIZES))]
    for seed in range(5):
        first = tried(AcquisitionOptimizer(POINTS, SIZES, False, seed, weights), 5)
        assert max(gain(point)[heavy] for point in first) == max(gain(point)[heavy] for point in POINTS)
