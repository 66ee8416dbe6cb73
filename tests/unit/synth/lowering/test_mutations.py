"""Random damage is either refused, or harmless: then a second, naive execution on numbers gives the right result."""

from collections import Counter
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings, strategies as st

from chorale.synth.programs.program import BufferRef, Instruction, Op, Program, Wait
from chorale.synth.targets.judge import check_program
from tests.conformance import example_programs as examples
from tests.unit.synth.lowering.naive import result_of
from tests.unit.synth.lowering.programs import lowered, with_block

Draw = st.DataObject


def mutate(program: Program, data: Draw) -> Program:
    """Return `program` with one random change in one block; it may still be right."""
    places = [(r, b) for r, rank in enumerate(program.ranks) for b, at in enumerate(rank.blocks) if at.instructions]
    if not places:
        return program
    rank, index = data.draw(st.sampled_from(places))
    block = program.ranks[rank].blocks[index]
    step = data.draw(st.integers(0, len(block.instructions) - 1))
    items, body, blocks = list(block.instructions), program.ranks[rank], {}
    item = items[step]
    match data.draw(st.sampled_from(CHANGES)):
        case "drop":
            del items[step]
        case "repeat":
            items.insert(step, item)
        case "swap":
            other = (step + 1) % len(items)
            items[step], items[other] = items[other], item
        case "operation":
            items[step] = replace(item, op=data.draw(st.sampled_from(list(Op))))
        case "operand":
            side = data.draw(st.sampled_from(["src", "dst"]))
            place = BufferRef(
                data.draw(st.sampled_from(["i", "o", "s"])), data.draw(st.integers(0, program.chunks - 1))
            )
            items[step] = replace(item, **{side: place})
        case "count":
            items[step] = replace(item, count=item.count + data.draw(st.sampled_from([-1, 1])))
        case "split":
            src, dst = (BufferRef(place.buffer, place.offset + 1) for place in (item.src, item.dst))
            halves = [replace(item, count=1), Instruction(item.op, src, dst, item.count - 1)]
            items[step : step + 1] = halves if item.count > 1 else []
        case "unwait":
            items[step] = replace(item, waits=())
        case "wait":
            other = data.draw(st.integers(0, len(body.blocks) - 1))
            last = max(0, len(body.blocks[other].instructions) - 1)
            items[step] = replace(item, waits=(Wait(other, data.draw(st.integers(0, last))),))
        case "peer":
            side = data.draw(st.sampled_from(["send_peer", "recv_peer"]))
            blocks[side] = data.draw(st.sampled_from([None, *range(len(program.ranks))]))
    return with_block(program, rank, index, replace(block, instructions=tuple(items), **blocks))


CHANGES = ("drop", "repeat", "swap", "operation", "operand", "count", "split", "unwait", "wait", "peer")


MADE = [
    lowered(spec, collective, target, in_place=in_place)
    for spec in ("ring:3", "hypercube:2", "ring:4")
    for collective in ("allgather", "reduce_scatter", "allreduce")
    for in_place in (True, False)
    for target in ("msccl-xml", "oneccl-xml")
]
MADE += [
    examples.ring_allreduce([0, 1, 2]),
    examples.ring_allreduce([0, 2, 1, 3], in_place=False),
    examples.ring_allgather(3, in_place=True),
    examples.ring_allgather(4, in_place=False),
    examples.ring_reduce_scatter(4),
    examples.scratch_allreduce_of_pair(),
    examples.star_broadcast(4, 1),
]


@pytest.mark.parametrize("examples", [400, pytest.param(2000, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_what_passes_the_check_is_right_whatever_the_order_and_the_cut(examples):
    check = given(st.sampled_from(MADE), st.data(), st.integers(1, 3))(is_refused_or_right)
    settings(max_examples=examples, deadline=None)(check)()


def is_refused_or_right(made, data, changes):
    damaged = made
    for _ in range(changes):
        damaged = mutate(damaged, data)
    if check_program(damaged):
        return
    for seed, piece in product(range(2), (1, 2, 100)):
        got, wanted = result_of(damaged, seed, piece)
        assert got == wanted


def test_damage_is_mostly_refused_but_not_always():
    """So that the test above cannot pass by refusing everything, or by changing nothing."""
    verdicts: Counter[bool] = Counter()

    @settings(max_examples=60, deadline=None, database=None, derandomize=True)
    @given(st.sampled_from(MADE), st.data())
    def judge(made, data):
        verdicts[not check_program(mutate(made, data))] += 1

    judge()
    assert verdicts[False] > verdicts[True] > 0
