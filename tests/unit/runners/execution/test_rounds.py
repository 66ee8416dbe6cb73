"""Whom the failure of a request names after a timeout."""

import pytest

from chorale.runners.api.base import FailureKind
from chorale.runners.execution.rounds import RunStopped, run_failure_of


@pytest.mark.parametrize(
    ("blocked", "rank"),
    [
        ({0: [(1, 2, "waits for rank 1")], 1: None}, 1),
        ({0: None}, 0),  # the rank that relays for all others
        ({0: None, 1: None, 2: None}, None),  # a call of a library: who waits does not answer either
        ({0: [], 1: []}, None),
    ],
)
def test_a_silent_rank_is_named_if_others_answer(blocked, rank):
    failure = run_failure_of(RunStopped(FailureKind.TIMEOUT, "the time limit passed"), blocked, {})
    assert failure.rank == rank
    assert failure.message.count("does not answer") == sum(blocks is None for blocks in blocked.values())
