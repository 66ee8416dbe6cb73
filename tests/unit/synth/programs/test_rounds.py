"""Rounds, executed on integers, give what collectives say, with every message matched within its round."""

import random
from collections import deque
from collections.abc import Sequence
from fractions import Fraction

import pytest
from hypothesis import given, strategies as st

from chorale.synth.collective import Collective, CollectiveName
from chorale.synth.errors import InvalidInput
from chorale.synth.programs.memory import BufferShape
from chorale.synth.programs.program import BufferRef, Instruction, Op, Program, RankProgram, ThreadBlock, Wait
from chorale.synth.programs.rounds import LocalStep, RankRounds, rounds_of
from tests.live.engine.programs import random_program
from tests.properties import random_cases

NETWORKS = ("ring:6", "torus:3x2", "hypercube:3", "uniring:1,6", "circulant:8,1,3", "mesh:2x3")
Values = list[list[Fraction | None]]


@random_cases(80)
@given(st.integers(0, 2**32))
def test_rounds_do_what_the_collective_says(seed: int) -> None:
    program = random_program(random.Random(seed), NETWORKS)
    parts = rounds_of(program)
    assert rounds_of(program) == parts
    shape = _shape(program)
    memory = _at_start(program, parts)
    _execute(parts, memory)
    for rank, part in enumerate(parts):
        wanted = [_expected(program, int(chunk)) for chunk in shape.result_chunks(rank)]
        assert memory[rank][part.layout.output_base :][: len(wanted)] == wanted, (program.name, rank)


@random_cases(30)
@given(st.integers(0, 2**32))
def test_no_round_is_empty_and_messages_of_a_round_touch_nothing_twice(seed: int) -> None:
    parts = rounds_of(random_program(random.Random(seed), NETWORKS))
    assert len({len(part.rounds) for part in parts}) == 1
    for turn in range(len(parts[0].rounds)):
        assert any(part.rounds[turn].sends for part in parts)
        for part in parts:
            written = _cells(part.rounds[turn].receives)
            assert len(written) == len(set(written))
            assert not set(written) & set(_cells(part.rounds[turn].sends))


def test_a_ring_of_sums_has_a_round_for_each_neighbour_and_way() -> None:
    draw = random.Random(1)
    for _ in range(5):
        program = random_program(draw, ("uniring:1,4",), ("ring",))
        ways = 2 if program.collective.name == CollectiveName.ALLREDUCE else 1
        assert len(rounds_of(program)[0].rounds) == 3 * ways


def test_a_message_does_not_wait_for_memory_that_is_still_to_be_sent() -> None:
    """Two ranks exchange what they have in one round, though it lands where it was sent from."""
    step = Instruction(Op.SEND, BufferRef("i", 0), BufferRef("i", 0), 1)
    take = Instruction(Op.RECV, BufferRef("o", 0), BufferRef("o", 0), 1, (Wait(0, 0),))
    parts = tuple(
        RankProgram(1, 1, 0, (ThreadBlock(1 - rank, None, 0, (step,)), ThreadBlock(None, 1 - rank, 0, (take,))))
        for rank in range(2)
    )
    rounds = rounds_of(_program(parts))
    assert [len(part.rounds) for part in rounds] == [1, 1]
    assert [part.spare_cells for part in rounds] == [1, 1]
    memory: Values = [[Fraction(rank + 1), None] for rank in range(2)]
    _execute(rounds, memory)
    assert [values[0] for values in memory] == [2, 1]


def test_a_program_that_blocks_is_refused() -> None:
    step = Instruction(Op.RECV, BufferRef("o", 0), BufferRef("o", 0), 1)
    parts = tuple(RankProgram(1, 1, 0, (ThreadBlock(None, 1 - rank, 0, (step,)),)) for rank in range(2))
    with pytest.raises(InvalidInput, match="rank 0, block 0, step 0"):
        rounds_of(_program(parts))


def _program(parts: tuple[RankProgram, ...]) -> Program:
    wanted = Collective(CollectiveName.ALLREDUCE)
    return Program("test", "oneccl-xml", wanted, 1, True, "Simple", 1, parts)


def _shape(program: Program) -> BufferShape:
    collective = program.collective
    return BufferShape(collective.name, program.chunks, len(program.ranks), program.in_place, collective.root)


def _value(rank: int, chunk: int) -> Fraction:
    """What a rank adds to a chunk; sums of these tell who is in them how often."""
    return Fraction(7 ** (rank + 1) + 1000003 * chunk * (rank + 1))


def _at_start(program: Program, parts: Sequence[RankRounds]) -> Values:
    memory: Values = []
    for rank, part in enumerate(parts):
        cells: list[Fraction | None] = [None] * (part.layout.cells + part.spare_cells)
        chunks = _shape(program).initial_chunks(rank)
        for position, chunk in enumerate(chunks.tolist()):
            cells[part.layout.input_base + position] = _value(rank, chunk)
        memory.append(cells)
    return memory


def _expected(program: Program, chunk: int) -> Fraction:
    name, ranks = program.collective.name, len(program.ranks)
    if name == CollectiveName.ALLGATHER:
        return _value(chunk * ranks // program.chunks, chunk)
    if name == CollectiveName.ALLTOALL:
        return _value(chunk // program.chunks, chunk)
    if name == CollectiveName.BROADCAST:
        return _value(program.collective.root or 0, chunk)
    return sum((_value(rank, chunk) for rank in range(ranks)), Fraction(0))


def _execute(parts: Sequence[RankRounds], memory: Values) -> None:
    for turn in range(len(parts[0].rounds)):
        wires: dict[tuple[int, int], deque[list[Fraction | None]]] = {}
        for rank, part in enumerate(parts):
            _do(part.rounds[turn].local, memory[rank])
            for peer, first, count in part.rounds[turn].sends:
                wires.setdefault((rank, peer), deque()).append(memory[rank][first : first + count])
        for rank, part in enumerate(parts):
            for peer, first, count in part.rounds[turn].receives:
                data = wires[peer, rank].popleft()
                assert len(data) == count
                memory[rank][first : first + count] = data
        assert not any(wires.values())
    for part, values in zip(parts, memory, strict=True):
        _do(part.after, values)


def _do(steps: Sequence[LocalStep], values: Values | list[Fraction | None]) -> None:
    for target, left, right, count in steps:
        for i in range(count):
            value = values[left + i]
            values[target + i] = value if right is None else value + values[right + i]  # type: ignore[operator]


def _cells(transfers: Sequence[tuple[int, int, int]]) -> list[int]:
    return [first + i for _, first, count in transfers for i in range(count)]
