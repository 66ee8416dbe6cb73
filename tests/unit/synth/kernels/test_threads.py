"""Parts that threads compute come in order, a few ahead; what one of them raises ends the rest."""

from __future__ import annotations

from itertools import islice

import pytest

from chorale.synth.kernels import threads
from chorale.synth.kernels.threads import in_threads_by_turns


@pytest.fixture(params=[1, 2, 3])
def cores(request, monkeypatch):
    monkeypatch.setattr(threads, "_cores", lambda: request.param)
    return request.param


def test_results_come_in_the_order_of_the_parts(cores):
    assert list(in_threads_by_turns(lambda part: part * part, range(50))) == [part * part for part in range(50)]
    assert list(in_threads_by_turns(lambda part: part, [])) == []


def test_few_are_computed_before_they_are_asked_for(cores):
    begun: list[int] = []
    results = in_threads_by_turns(begun.append, range(50))
    assert len(list(islice(results, 4))) == 4
    results.close()
    assert len(begun) <= 4 + cores


def test_the_first_error_is_raised_and_the_rest_is_left(cores):
    begun: list[int] = []

    def divided(part: int) -> float:
        begun.append(part)
        return 1 / (5 - part)

    results = in_threads_by_turns(divided, range(50))
    assert len(list(islice(results, 5))) == 5
    with pytest.raises(ZeroDivisionError):
        next(results)
    assert max(begun) <= 5 + cores
