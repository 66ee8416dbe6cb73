"""The order of the runs, and what their seconds become."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from chorale.runners.api.base import ProgramSettings, RunRequest
from chorale.runners.oneccl.tasks import RunEntry, collect_measurements, library_sizes, run_descriptions, run_order
from chorale.synth.collective import CollectiveName
from tests.conformance.runner_kit import RING, request_of

REQUEST = replace(
    request_of(RING, library=("ring", "2d")),
    programs={"one": RING, "other": RING},
    sizes_bytes=(4096, 5000),
    repeats=3,
    warmup=2,
)


def _order(request: RunRequest) -> list[RunEntry]:
    return run_order(request, library_sizes(request, CollectiveName.ALLREDUCE))


def test_every_round_has_everything_once_in_an_order_of_its_own() -> None:
    order = _order(REQUEST)
    rounds = [order[start : start + 4] for start in range(0, len(order), 4)]
    assert [one[0].size for one in rounds] == [0] * 5 + [1] * 5
    assert [one[0].measured for one in rounds] == 2 * ([False] * 2 + [True] * 3)
    for one in rounds:
        assert Counter(entry.name for entry in one) == Counter(["one", "other", "library:ring", "library:2d"])
        assert len({(entry.size, entry.measured) for entry in one}) == 1
    assert len({tuple(entry.name for entry in one) for one in rounds}) > 1


def test_the_seed_fixes_the_order() -> None:
    assert _order(REQUEST) == _order(REQUEST)
    assert _order(REQUEST) != _order(replace(REQUEST, seed=1))


def test_programs_have_sizes_that_their_chunks_divide() -> None:
    elements = {entry.size: entry.elements for entry in _order(REQUEST) if entry.program is not None}
    assert elements == {0: 1024, 1: 1252}


def test_chunks_are_cut_to_the_buffer_but_not_below_one_element() -> None:
    settings = {"one": ProgramSettings(buffer_bytes=400), "other": ProgramSettings(buffer_bytes=1)}
    parts = {(e.name, e.size): e.parts for e in _order(replace(REQUEST, settings=settings)) if e.program is not None}
    # Chunks of 1024 and 1252 bytes, of 256 and 313 elements.
    assert parts == {("one", 0): 3, ("one", 1): 4, ("other", 0): 256, ("other", 1): 313}


def test_measurements_hold_the_measured_seconds_by_name_and_size() -> None:
    order = _order(REQUEST)
    results = collect_measurements(REQUEST, order, [float(number) for number in range(len(order))])
    assert list(results) == ["one", "other", "library:ring", "library:2d"]
    for name, sizes in results.items():
        for size, one in enumerate(sizes):
            expected = [n for n, e in enumerate(order) if (e.name, e.size, e.measured) == (name, size, True)]
            assert list(one.times_s) == expected
            assert one.requested_bytes == REQUEST.sizes_bytes[size]
    assert results["one"][1].size_bytes == 5008
    assert len({results[name][0].size_bytes for name in ("library:ring", "library:2d")}) == 2


def test_runs_are_named_by_number_and_what_runs() -> None:
    assert run_descriptions([RunEntry("ring", 0, 0, 64, 1, True)]) == ["run 0, ring on 64 elements"]
