"""The order of additions of programs, against a plain execution in random orders, and what is known of methods."""

import random
import re
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from chorale.synth.collective import ALLREDUCE, Collective, CollectiveName
from chorale.synth.errors import InvalidInput
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.lowering.lower import lower
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.lowering.switches import switch_plan
from chorale.synth.methods.catalog import synthesize
from chorale.synth.programs.additions import OrderOfAdditions, order_of_additions
from chorale.synth.programs.plans.translate import plan_of
from chorale.synth.programs.program import QUEUE_DEPTH, BufferRef, Instruction, Op, Program, RankProgram, ThreadBlock
from chorale.synth.topology.spec import parse_topology
from tests.live.engine.programs import random_program
from tests.properties import random_cases
from tests.unit.synth.lowering.naive import execute
from tests.unit.synth.lowering.programs import stars

SMALL = ("ring:4", "torus:2x2", "complete:4", "hypercube:2", "uniring:1,4", "mesh:2x3", "ring:5", "genkautz:2,6")
ADDING_METHODS = ("bfb", "ring", "biring", "rabenseifner", "recursive-doubling", "swing-latency", "forest", "blink")


def made(spec: str, method: str, collective: Collective = ALLREDUCE, **options: object) -> Program:
    schedule = synthesize(method, parse_topology(spec), collective, None, SerialExecutor())
    return lower(schedule, replace(LoweringOptions("oneccl-xml"), **options))


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
    """Return a sum of texts with the operands of each addition in alphabetical order."""
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
    """Return how deep the brackets of `text` are nested."""
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


def test_halving_and_doubling_adds_all_elements_in_one_order():
    order = order_of_additions(made("hypercube:2", "rabenseifner"))
    assert order.independent_of_position
    assert order.same_on_all_ranks
    texts = {canonical(text_of(order, expression)) for result in order.results.values() for expression in result}
    assert texts in ({"((0+1)+(2+3))"}, {"((0+2)+(1+3))"})


def test_ranks_of_latency_optimal_swing_get_results_of_different_orders():
    order = order_of_additions(made("ring:8", "swing-latency"))
    assert not order.same_on_all_ranks
    assert not order.independent_of_position


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
