"""A search goes on whatever it is told: constant, doubled, missing, wildly scaled and contradictory results."""

import math
import sqlite3

import numpy as np
import pytest

from chorale.synth.errors import CheckFailed, Unavailable
from chorale.tuner.search.search import Search, SearchPlan, search_failure
from chorale.tuner.search.size_model import AcquisitionOptimizer
from chorale.tuner.search.space import SearchSpace
from chorale.tuner.search.storages import storage_in_memory
from chorale.tuner.trials.records import Candidate, CompleteTrial, SizeResult

POINTS = tuple(Candidate(method, k=k, channels=c) for method in "abc" for k in (1, 2, 4) for c in (1, 2))
SIZES = (1024, 65536, 2**20)
HOSTILE = {
    "constant": lambda random: np.ones(3),
    "zero": lambda random: np.zeros(3),
    "nan": lambda random: np.full(3, math.nan),
    "infinite": lambda random: np.full(3, math.inf),
    "wild": lambda random: 10.0 ** random.uniform(-300, 300, 3),
    "contradictory": lambda random: random.choice([1e-9, 1e9], 3),
    "mixed": lambda random: random.choice([0.0, math.nan, 1e-300, 1.0, 1e300, -1.0], 3),
}


def space_plan(sampler: str, seed: int) -> SearchPlan:
    dimensions = {"method": ("a", "b", "c"), "k": (1, 2, 4), "channels": (1, 2)}

    class Everything:
        def matters(self, parameter: str, method: str) -> bool:
            return True

        def reason_not_to_try(self, candidate: Candidate) -> str | None:
            return None

    return SearchPlan(SearchSpace(dimensions, Everything()), "fuzz", sampler, seed, lambda one: one.id, SIZES)


def record(candidate: Candidate, times: np.ndarray) -> CompleteTrial:
    sizes = tuple(SizeResult(s, s, (float(t),) * 3, {"library": (1.0,) * 3}) for s, t in zip(SIZES, times, strict=True))
    return CompleteTrial(candidate.id, 1, candidate, 0.0, 0.0, "", candidate.id, sizes)


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("sampler", ["sizes-gp", "tpe"])
def test_every_point_is_tried_whatever_the_times_are(kind: str, sampler: str) -> None:
    for seed in range(3):
        random = np.random.default_rng(seed)
        search = Search(space_plan(sampler, seed), storage_in_memory())
        tried = []
        while (suggestion := search.ask()) is not None:
            tried.append(suggestion.candidate)
            search.tell(suggestion.ticket, record(suggestion.candidate, HOSTILE[kind](random)))
        assert len(tried) == len(set(tried)) == len(POINTS)


def test_what_stands_in_for_a_broken_model_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise np.linalg.LinAlgError("Eigenvalues did not converge")

    optimizer = AcquisitionOptimizer(POINTS, SIZES, False, 0)
    monkeypatch.setattr(optimizer, "_next", broken)
    gains = {point: np.array([index, 0.0, 0.0]) for index, point in enumerate(POINTS[:4])}
    assert optimizer.next(gains, [], []) not in gains
    assert set(optimizer.notes) == {"the model was taken back to its prior", "a point was drawn at random"}


def test_a_failure_is_blamed_on_what_failed() -> None:
    assert isinstance(search_failure(sqlite3.OperationalError("disk I/O error")), Unavailable)
    assert isinstance(search_failure(OSError(28, "No space left on device")), Unavailable)
    blamed = search_failure(np.linalg.LinAlgError("Eigenvalues did not converge"))
    assert isinstance(blamed, CheckFailed)
    assert "sampler" in str(blamed)
    assert "storage" not in str(blamed)
