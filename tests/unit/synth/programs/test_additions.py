"""The order of additions of programs against a plain execution, and rounds that give what collectives say."""

import random
import re
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st

from chorale.experiments.framework.experiment import synthesized
from chorale.runners.engine.library import DataType, ReduceOp
from chorale.synth.collective import ALLREDUCE, Collective, CollectiveName
from chorale.synth.errors import InvalidInput
from chorale.synth.lowering.lower import lower
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.lowering.switches import switch_plan
from chorale.synth.programs.additions import OrderOfAdditions, order_of_additions
from chorale.synth.programs.memory import BufferShape
from chorale.synth.programs.plans.translate import plan_of
from chorale.synth.programs.program import (
    QUEUE_DEPTH,
    BufferRef,
    Instruction,
    Op,
    Program,
    RankProgram,
    ThreadBlock,
    Wait,
)
from chorale.synth.programs.rounds import LocalStep, RankRounds, rounds_of
from tests.live.engine.programs import random_program
from tests.live.engine.reference import expected_output, input_elements
from tests.properties import random_cases
from tests.unit.synth.lowering.naive import execute
from tests.unit.synth.lowering.programs import stars

SMALL = ("ring:4", "torus:2x2", "complete:4", "hypercube:2", "uniring:1,4", "mesh:2x3", "ring:5", "genkautz:2,6")
ADDING_METHODS = ("bfb", "ring", "biring", "rabenseifner", "recursive-doubling", "swing-latency", "forest", "blink")


def made(spec: str, method: str, collective: Collective = ALLREDUCE, **options: object) -> Program:
    return lower(synthesized(method, spec, collective), replace(LoweringOptions("oneccl-xml"), **options))


class Sum(str):
    """A sum as text, with the operands of each addition in alphabetical order."""

    __slots__ = ()

    def __add__(self, other: str) -> "Sum":
        return Sum("({}+{})".format(*sorted((self, other))))


def plain_results(program: Program, seed: int) -> dict[int, list[str]]:
    """Execute one random block at a time on sums written as texts."""
    inputs = [[Sum(rank)] * program.chunks for rank in range(len(program.ranks))]
    memory = execute(program, inputs, QUEUE_DEPTH[program.protocol], piece=10**6, seed=seed)
    name, ranks = program.collective.name, range(len(program.ranks))
    if name is CollectiveName.REDUCE:
        return {program.collective.root: memory[program.collective.root]["o"]}
    if name is CollectiveName.REDUCE_SCATTER and program.in_place:
        share = program.chunks // len(ranks)
        return {rank: memory[rank]["i"][rank * share : (rank + 1) * share] for rank in ranks}
    return {rank: memory[rank]["o"] for rank in ranks}


def text_of(order: OrderOfAdditions, expression: int) -> str:
    """Return an expression as a text of rank numbers, such as ((0+1)+(2+3))."""
    texts = [str(rank) for rank in range(order.ranks)]
    for left, right in order.sums:
        texts.append(f"({texts[left]}+{texts[right]})")
    return texts[expression]


def canonical(text: str) -> str:
    return eval(re.sub(r"\d+", r"Sum('\g<0>')", text))


@random_cases(25)
@given(st.integers(0, 10**6))
def test_the_order_is_that_of_a_plain_execution_whichever_block_goes_first(seed):
    draw = random.Random(seed)
    program = random_program(draw, SMALL, ADDING_METHODS)
    order = order_of_additions(program)
    if not program.collective.reduces:
        assert order is None
        return
    for turn in range(2):
        plain = plain_results(program, seed + turn)
        assert plain == {
            rank: [canonical(text_of(order, expression)) for expression in result]
            for rank, result in order.results.items()
        }
    chunks = {}
    for rank, result in plain.items():
        first = rank * len(result) if program.collective.name is CollectiveName.REDUCE_SCATTER else 0
        for chunk, text in enumerate(result, first):
            chunks.setdefault(chunk, set()).add(text)
    assert order.same_on_all_ranks == all(len(texts) == 1 for texts in chunks.values())
    assert order.orders == len(set().union(*chunks.values()))
    assert order.depth() == max(deepest(text) for texts in chunks.values() for text in texts)


def deepest(text: str) -> int:
    level = most = 0
    for letter in text:
        level += (letter == "(") - (letter == ")")
        most = max(most, level)
    return most


def test_a_ring_adds_each_chunk_along_the_ring_from_another_rank():
    order = order_of_additions(made("uniring:1,4", "ring"))
    texts = {text_of(order, expression) for result in order.results.values() for expression in result}
    assert {canonical(text) for text in texts} == {
        canonical(text) for text in ("(((0+1)+2)+3)", "(((1+2)+3)+0)", "(((2+3)+0)+1)", "(((3+0)+1)+2)")
    }
    facts = order.to_json()
    del facts["digest"]
    assert facts == {
        "fixed": True, "same_on_all_ranks": True, "independent_of_position": False, "orders": 4, "depth": 3,
    }  # fmt: skip


def test_halving_and_doubling_adds_all_elements_in_one_order_and_latency_optimal_swing_does_not():
    order = order_of_additions(made("ring:8", "swing-latency"))
    assert (order.same_on_all_ranks, order.independent_of_position) == (False, False)
    order = order_of_additions(made("hypercube:2", "rabenseifner"))
    assert order.independent_of_position
    assert order.same_on_all_ranks
    texts = {canonical(text_of(order, expression)) for result in order.results.values() for expression in result}
    assert texts in ({"((0+1)+(2+3))"}, {"((0+2)+(1+3))"})


def test_placement_channels_and_protocol_do_not_change_the_digest():
    digests = {
        order_of_additions(made("ring:4", "ring", **options)).digest()
        for options in ({}, {"in_place": False}, {"protocol": "LL"}, {"fuse": True})
    }
    assert len(digests) == 1
    others = {order_of_additions(made(spec, "bfb")).digest() for spec in ("ring:4", "ring:5", "complete:4")}
    assert len(others) == 3
    assert not others & digests


def test_a_plan_adds_as_the_program_of_its_schedule_where_blocks_send_on_what_they_receive():
    program = made("ring:4", "ring")
    assert order_of_additions(made("ring:4", "ring", Collective(CollectiveName.ALLGATHER))) is None
    assert order_of_additions(program, most_moves=3) is None
    plan = plan_of(program)
    assert order_of_additions(plan).digest() == order_of_additions(program).digest()
    assert order_of_additions(plan_of(made("ring:4", "ring", Collective(CollectiveName.ALLGATHER)))) is None
    assert order_of_additions(plan, most_moves=3) is None
    switch = switch_plan(stars("h100:1"), LoweringOptions("mscclpp-json"))
    assert order_of_additions(switch) is None
    assert order_of_additions(plan_of(made("complete:4", "bfb"))).same_on_all_ranks
    assert not order_of_additions(plan_of(made("complete:4", "one-shot"))).same_on_all_ranks


@pytest.mark.parametrize(
    ("steps", "found"),
    [
        ([Instruction(Op.RECV_REDUCE_COPY, BufferRef("i", 0), BufferRef("i", 0), 1)], "hangs"),
        ([Instruction(Op.REDUCE, BufferRef("s", 0), BufferRef("i", 0), 1)], "never written"),
    ],
)
def test_programs_that_do_nothing_right_are_refused(steps, found):
    empty = RankProgram(1, 1, 1, (ThreadBlock(0, 0, 0, ()),))
    wrong = RankProgram(1, 1, 1, (ThreadBlock(1, 1, 0, tuple(steps)),))
    program = Program("p", "oneccl-xml", ALLREDUCE, 1, True, "Simple", 1, (wrong, replace(empty)))
    with pytest.raises(InvalidInput, match=found):
        order_of_additions(program)


NETWORKS = ("ring:6", "torus:3x2", "hypercube:3", "uniring:1,6", "circulant:8,1,3", "mesh:2x3")
Values = list[list[int | None]]


@random_cases(80)
@given(st.integers(0, 2**32))
def test_rounds_do_what_the_collective_says(seed: int) -> None:
    draw = random.Random(seed)
    program = random_program(draw, NETWORKS)
    parts, wanted, ranks = rounds_of(program), program.collective, len(program.ranks)
    assert rounds_of(program) == parts
    shape = BufferShape(wanted.name, program.chunks, ranks, program.in_place, wanted.root)
    count = input_elements(wanted, program.chunks, ranks)
    inputs = [np.array([draw.randrange(10**9) for _ in range(count)]) for _ in range(ranks)]
    memory: Values = [[None] * (part.layout.cells + part.spare_cells) for part in parts]
    for rank, part in enumerate(parts):
        begin = inputs[rank][: len(shape.initial_chunks(rank))].tolist()
        memory[rank][part.layout.input_base : part.layout.input_base + len(begin)] = begin
    _execute(parts, memory)
    for rank, part in enumerate(parts):
        result = expected_output(wanted, inputs, rank, DataType.INT64, ReduceOp.SUM)
        if result is not None:
            assert memory[rank][part.layout.output_base :][: len(result)] == result.tolist(), (program.name, rank)


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
    memory: Values = [[rank + 1, None] for rank in range(2)]
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


def _execute(parts: Sequence[RankRounds], memory: Values) -> None:
    for turn in range(len(parts[0].rounds)):
        wires: dict[tuple[int, int], deque[list[int | None]]] = {}
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


def _do(steps: Sequence[LocalStep], values: list[int | None]) -> None:
    for target, left, right, count in steps:
        for i in range(count):
            value = values[left + i]
            values[target + i] = value if right is None else value + values[right + i]  # type: ignore[operator]


def _cells(transfers: Sequence[tuple[int, int, int]]) -> list[int]:
    return [first + i for _, first, count in transfers for i in range(count)]
