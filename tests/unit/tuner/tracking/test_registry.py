"""Which versions are the same."""

from __future__ import annotations

from chorale.tuner.tracking.registry import LIBRARY_ALGORITHM, PROGRAM_ID, RUNNER, is_same


def tags(runner: str = "local") -> dict[str, str]:
    return {RUNNER: runner, PROGRAM_ID: "p"}


def test_the_same_program_from_another_kind_of_runner_is_another_version() -> None:
    assert is_same(tags(), tags())
    assert not is_same(tags(runner="simulated"), tags())
    assert not is_same({}, tags())


def test_algorithms_of_the_library_are_versions_by_name() -> None:
    assert is_same({RUNNER: "oneccl", LIBRARY_ALGORITHM: "ring"}, {RUNNER: "oneccl", LIBRARY_ALGORITHM: "ring"})
    assert not is_same({RUNNER: "oneccl", LIBRARY_ALGORITHM: "ring"}, {RUNNER: "oneccl", LIBRARY_ALGORITHM: "direct"})
    assert not is_same({RUNNER: "local"}, {RUNNER: "local", LIBRARY_ALGORITHM: "ring"})
