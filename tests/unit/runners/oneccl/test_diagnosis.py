"""Why a request failed, from what its processes left."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from chorale.runners.api.base import FailureKind
from chorale.runners.oneccl.tasks import LIMIT_PASSED, crash_failure, timeout_failure, wrong_result_failure

NAMES = ["run 0, a on 8 elements", "run 1, b on 8 elements"]


@dataclass
class Left:
    """Processes that have ended."""

    ended: Sequence[int | None]
    files: Mapping[str, list[str]] = field(default_factory=dict)

    def codes(self) -> Sequence[int | None]:
        return self.ended

    def texts(self, name: str) -> list[str]:
        return self.files.get(name, [""] * len(self.ended))

    def last_error(self, rank: int) -> str:
        return f"error of {rank}"


@pytest.mark.parametrize(
    ("codes", "rank", "message"),
    [
        ([None, -9, None], 1, "rank 1 was killed by SIGKILL"),
        ([4, None, -11], 2, "rank 2 was killed by SIGSEGV"),
        ([None, 4, 4], 1, "rank 1 ended with code 4: error of 1"),
        ([None, 0], 1, "rank 1 ended with code 0: error of 1"),
        ([-signal.SIGABRT, None, -signal.SIGTERM], 2, "rank 2 was killed by SIGTERM"),
        ([LIMIT_PASSED, 127], 1, "rank 1 ended with code 127: error of 1"),
    ],
)
def test_a_violent_death_is_the_cause_before_others_give_up(codes: list[int | None], rank: int, message: str) -> None:
    stopped = crash_failure(Left(codes))  # type: ignore[arg-type]
    assert stopped is not None
    assert (stopped.kind, stopped.rank, stopped.message) == (FailureKind.CRASH, rank, message)


def test_a_missing_algorithm_is_a_rejection() -> None:
    left = Left([4, None])
    left.last_error = lambda rank: "error: oneCCL: can not select algo from main table"  # type: ignore[method-assign]
    stopped = crash_failure(left)  # type: ignore[arg-type]
    assert stopped is not None
    assert stopped.kind is FailureKind.REJECTED


@pytest.mark.parametrize("codes", [[None, None], [LIMIT_PASSED, None], [LIMIT_PASSED, -signal.SIGALRM]])
def test_the_time_limit_is_no_crash(codes: list[int | None]) -> None:
    assert crash_failure(Left(codes)) is None  # type: ignore[arg-type]


def test_the_first_wrong_run_is_reported_with_its_first_rank() -> None:
    assert wrong_result_failure(NAMES, [["", ""], ["", ""]]) is None
    stopped = wrong_result_failure(NAMES, [["", "x"], ["", "y"], ["", ""]])
    assert stopped is not None
    assert (stopped.kind, stopped.rank) == (FailureKind.WRONG_RESULT, 0)
    assert stopped.message == "run 1, b on 8 elements gave a wrong result on 2 of 3 ranks; rank 0: x"


def test_a_timeout_names_the_run_and_who_waits_for_nobody() -> None:
    stuck = [
        "run 1 its own blocks\nblock 0 3 waits for a message from rank 1\n",
        "run 1 nothing\nblock 0 2 could go on\nblock 2 0 waits for block 0 instruction 2\n",
        "run 1 word of being ready from rank 1\n",
    ]
    files = {"stuck": stuck, "joined": ["yes\n"] * 3, "results": ["1 2 \n", "1 2 \n", "1 2 \n1 2 \n"]}
    stopped, blocks = timeout_failure(Left([LIMIT_PASSED] * 3, files), NAMES)  # type: ignore[arg-type]
    assert (stopped.kind, stopped.rank) == (FailureKind.TIMEOUT, 1)
    assert stopped.message == (
        "the time limit passed while run 1, b on 8 elements, rank 2 waited for word of being ready from rank 1"
    )
    assert blocks == {
        0: [(0, 3, "waits for a message from rank 1")],
        1: [(0, 2, "could go on"), (2, 0, "waits for block 0 instruction 2")],
        2: [],
    }


@pytest.mark.parametrize(
    ("codes", "silent"),
    [([LIMIT_PASSED, -14, None], [2]), ([LIMIT_PASSED, -14, -14], [1, 2]), ([LIMIT_PASSED, None, None], [1, 2])],
)
def test_ranks_that_do_not_end_are_silent_before_those_that_do_not_report(
    codes: list[int | None], silent: list[int]
) -> None:
    files = {"stuck": ["run 0 x\n", "", ""], "joined": ["yes\n"] * 3, "results": [""] * 3}
    stopped, blocks = timeout_failure(Left(codes, files), NAMES)  # type: ignore[arg-type]
    assert stopped.rank is None
    assert blocks == {rank: None if rank in silent else [] for rank in range(3)}


@pytest.mark.parametrize(
    ("files", "doing"),
    [
        ({}, "the ranks looked for one another"),
        ({"joined": ["yes\n"] * 2, "results": ["a\nb\n"] * 2}, "the ranks took leave"),
    ],
)
def test_before_and_after_the_runs_there_is_a_name_too(files: dict[str, list[str]], doing: str) -> None:
    stopped, _ = timeout_failure(Left([None, None], files), NAMES)  # type: ignore[arg-type]
    assert stopped.message == f"the time limit passed while {doing}"
