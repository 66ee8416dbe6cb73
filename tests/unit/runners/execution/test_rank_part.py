import json

import pytest

from chorale.runners.execution.rank_part import RankPart
from chorale.synth.collective import ALLREDUCE
from chorale.synth.programs.program import Program
from tests.conformance.example_programs import ring_allgather, scratch_allreduce_of_pair, star_broadcast


@pytest.mark.parametrize(
    "program", [ring_allgather(4, in_place=False), scratch_allreduce_of_pair(), star_broadcast(5, root=2)]
)
def test_a_part_survives_the_trip_through_json(program: Program) -> None:
    for rank in range(len(program.ranks)):
        part = RankPart.of(program, rank)
        assert part.words
        assert RankPart.from_json(json.loads(json.dumps(part.to_json()))) == part


def test_a_librarys_collective_has_nothing_for_the_engine() -> None:
    part = RankPart.of_library(ALLREDUCE, 4)
    assert RankPart.from_json(json.loads(json.dumps(part.to_json()))) == part
    assert part.words == b""
    assert not part.layout.in_place
