"""Values on their way between processes: the same on the other side, and programs quickly."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, fields

from chorale.runners.ray.parcels import Packed
from chorale.synth.programs.program import BufferRef, Instruction, RankProgram, ThreadBlock, Wait, pickled_by_fields
from tests.conformance.runner_kit import RING


@pickled_by_fields
@dataclass(frozen=True, slots=True)
class Pair:
    left: int
    right: tuple[int, ...] = ()


def test_what_is_opened_equals_what_was_packed():
    packed = Packed.of({"a": RING, "b": (1, None)})
    assert packed.open() == {"a": RING, "b": (1, None)}
    assert pickle.loads(pickle.dumps(packed)) == packed


def test_instances_are_pickled_as_the_values_of_their_fields():
    pair = Pair(1, (2, 3))
    assert pair.__reduce__() == (Pair, (1, (2, 3)))
    assert pickle.loads(pickle.dumps(pair)) == pair


def test_every_part_of_a_program_is_pickled_by_its_fields():
    block = next(block for rank in RING.ranks for block in rank.blocks)
    parts = (BufferRef("i", 1), Wait(0, 2), block.instructions[0], block, RING.ranks[0])
    for part in parts:
        assert part.__reduce__() == (type(part), tuple(getattr(part, one.name) for one in fields(part)))
    assert {type(part) for part in parts} == {BufferRef, Wait, Instruction, ThreadBlock, RankProgram}
