"""Parts of ranks survive JSON; and whom the failure of a request names after a timeout."""

import json

import pytest

from chorale.runners.api.base import FailureKind
from chorale.runners.execution.rank_part import RankPart
from chorale.runners.execution.rounds import RunStopped, run_failure_of
from chorale.synth.collective import ALLREDUCE
from chorale.synth.programs.program import Program
from tests.conformance.example_programs import ring_allgather, scratch_allreduce_of_pair, star_broadcast


@pytest.mark.parametrize(
    "program", [ring_allgather(4, in_place=False), scratch_allreduce_of_pair(), star_broadcast(5, root=2)]
)
def test_a_part_survives_the_trip_through_json_as_does_a_librarys_without_words(program: Program) -> None:
    for rank in range(len(program.ranks)):
        part = RankPart.of(program, rank)
        assert part.words
        assert RankPart.from_json(json.loads(json.dumps(part.to_json()))) == part
    part = RankPart.of_library(ALLREDUCE, 4)
    assert RankPart.from_json(json.loads(json.dumps(part.to_json()))) == part
    assert part.words == b""
    assert not part.layout.in_place


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
