"""Plans that break a rule are refused; the rule, other accesses, and who waits for whom are named."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from chorale.synth.collective import Collective, CollectiveName
from chorale.synth.programs.plans.plan import Action, ExecutionPlan, Operand, Operation, PlanBlock, PlanSettings
from chorale.synth.programs.plans.run import plan_execution_violations
from chorale.synth.targets.judge import check_program
from chorale.synth.targets.mscclpp_text import parse_plan
from tests.conformance.plan_cases import CASES, ENTRY, Json, local, meet, move, ops_of, plan, remote, tell
from tests.unit.synth.lowering.programs import with_block
from tests.unit.synth.programs.plans.examples import SMALL, Spot, edited, operations

GUIDE = Path(__file__).parents[5] / "docs" / "reference" / "mscclpp-json.md"
GATHER, ALLREDUCE_IN_PLACE, _, ALLREDUCE, SCATTER_IN_PLACE = SMALL
NOP = Operation(Action.NOP)


@pytest.mark.parametrize("plan", [GATHER, SCATTER_IN_PLACE], ids=lambda plan: plan.name)
def test_no_operation_can_be_left_out(plan):
    assert check_program(plan) == []
    for spot in operations(plan):
        assert check_program(edited(plan, spot)) != [], spot
    alone = rank_changed(ALLREDUCE, peers=(*ALLREDUCE.ranks[0].peers, 1))  # a channel that only one side declares
    assert check_program(alone) == []


def first(plan: ExecutionPlan, action: Action) -> Spot:
    return next(spot for spot in operations(plan) if spot[3].action is action)


def without(plan: ExecutionPlan, action: Action) -> ExecutionPlan:
    return edited(plan, first(plan, action))


def changed(plan: ExecutionPlan, action: Action, **changes: object) -> ExecutionPlan:
    spot = first(plan, action)
    return edited(plan, spot, replace(spot[3], **changes))  # type: ignore[arg-type]


def rank_changed(plan: ExecutionPlan, **changes: object) -> ExecutionPlan:
    return replace(plan, ranks=(replace(plan.ranks[0], **changes), *plan.ranks[1:]))  # type: ignore[arg-type]


def with_more(plan: ExecutionPlan, *items: Operation) -> ExecutionPlan:
    """Return `plan` with `items` at the end of the first block of rank 0."""
    block = plan.ranks[0].blocks[0]
    return with_block(plan, 0, 0, replace(block, operations=(*block.operations, *items)))


def one_sided(action: Action) -> ExecutionPlan:
    """Rank 0 declares a channel that rank 1 does not know, and uses it."""
    body = ALLREDUCE.ranks[0]
    block = PlanBlock((len(body.peers),), (), (Operation(action, channels=(0,)),))
    return rank_changed(ALLREDUCE, peers=(*body.peers, 1), blocks=(*body.blocks, block))


def shared(plan: ExecutionPlan) -> ExecutionPlan:
    """Two blocks of rank 0 signal on one channel."""
    block = plan.ranks[0].blocks[0]
    extra = PlanBlock(block.channels, (), (Operation(Action.SIGNAL, channels=(0,)),))
    return rank_changed(plan, blocks=(*plan.ranks[0].blocks, extra))


FAULTS: dict[str, list[Callable[[], ExecutionPlan]]] = {
    "chunks": [lambda: replace(ALLREDUCE, collective=Collective(CollectiveName.ALLTOALL), ranks=ALLREDUCE.ranks[:3])],
    "root": [lambda: replace(ALLREDUCE, collective=Collective(CollectiveName.BROADCAST, 4))],
    "buffers": [lambda: rank_changed(ALLREDUCE, input_chunks=ALLREDUCE.chunks - 1)],
    "never used": [lambda size=size: replace(ALLREDUCE, min_bytes=2 * size, max_bytes=size) for size in (1, 0)],
    "idle rank": [lambda: rank_changed(ALLREDUCE, blocks=())],
    "limit": [
        lambda: with_block(ALLREDUCE, 0, 0, PlanBlock((), (), (NOP,) * 65)),
        lambda: with_block(ALLREDUCE, 0, 0, PlanBlock((0,) * 17, (), ())),
        lambda: replace(ALLREDUCE, max_bytes=2**40),
        lambda: replace(ALLREDUCE, min_bytes=2**31),
        lambda: replace(ALLREDUCE, settings=PlanSettings(threads=1025)),
    ],
    "peer": [lambda: rank_changed(ALLREDUCE, peers=(0, *ALLREDUCE.ranks[0].peers[1:]))],
    "channel": [
        lambda: changed(ALLREDUCE, Action.SIGNAL, kind="switch"),
        lambda: changed(ALLREDUCE, Action.SIGNAL, channels=(9,)),
        lambda: changed(ALLREDUCE, Action.SIGNAL, channels=()),
        lambda: changed(ALLREDUCE, Action.SIGNAL, channels=(0, 0)),
    ],
    "shared channel": [lambda: shared(ALLREDUCE)],
    "remote buffer": [
        lambda: rank_changed(ALLREDUCE, remotes=((0, "o"), *ALLREDUCE.ranks[0].remotes[1:])),
        lambda: rank_changed(SCATTER_IN_PLACE, remotes=(*SCATTER_IN_PLACE.ranks[0].remotes, (1, "o"))),
        lambda: changed(ALLREDUCE, Action.PUT, targets=(Operand(0, 1, remote=7),)),
        lambda: with_block(ALLREDUCE, 0, 0, PlanBlock((), (99,), ())),
    ],
    "operand": [
        lambda: changed(ALLREDUCE, Action.PUT, sources=(Operand(10**6, 1, "i"),)),
        lambda: changed(ALLREDUCE, Action.REDUCE, sources=()),
        lambda: changed(ALLREDUCE, Action.PUT, sources=(Operand(0, 1, "i"), Operand(0, 1, "o"))),
    ],
    "count": [
        lambda: changed(ALLREDUCE, Action.PUT, targets=(Operand(0, 2, remote=0),)),
        lambda: changed(ALLREDUCE, Action.PUT, sources=(Operand(0, 0, "i"),), targets=(Operand(0, 0, remote=0),)),
    ],
    "overlap": [
        lambda: changed(ALLREDUCE, Action.REDUCE, sources=(Operand(0, 3, "o"),) * 2, targets=(Operand(1, 3, "o"),))
    ],
    "signals": [
        lambda: without(ALLREDUCE, Action.SIGNAL),
        lambda: without(ALLREDUCE, Action.WAIT),
        lambda: one_sided(Action.WAIT),
        lambda: one_sided(Action.SIGNAL),
    ],
    "switch": [lambda: rank_changed(ALLREDUCE, switches=(("o", (0, 9)),))],
    "semaphore": [
        lambda: without(ALLREDUCE, Action.ACQUIRE),
        lambda: without(ALLREDUCE, Action.RELEASE),
        lambda: changed(ALLREDUCE, Action.RELEASE, semaphores=(99,)),
    ],
    "input changed": [
        lambda: with_more(ALLREDUCE, NOP, Operation(Action.COPY, (Operand(0, 1, "i"),), (Operand(1, 1, "i"),)))
    ],
}


@pytest.mark.parametrize(("rule", "number"), [(rule, n) for rule, found in FAULTS.items() for n in range(len(found))])
def test_a_broken_rule_is_named(rule, number):
    assert rule in {violation.rule for violation in check_program(FAULTS[rule][number]())}


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (Action.SIGNAL, r"rank 0: signals 0 times on memory channel 1, rank 1, block \d+ waits 1"),
        (Action.WAIT, r"rank 1, block \d+: signals 5 times on memory channel 1, rank 0, block \d+ waits 4"),
        (Action.ACQUIRE, r"rank 0, block \d+: semaphore \d+ is released 1 times by block \d+ and acquired 0 times"),
        (Action.RELEASE, r"rank 0, block 3: semaphore \d+ is released 1 times by .* and acquired 2 times by block 3"),
    ],
)
def test_counts_that_differ_name_the_thread_blocks(action, message):
    messages = [violation.message for violation in check_program(without(ALLREDUCE, action))]
    assert any(re.fullmatch(message, each) for each in messages), messages


def test_every_rule_is_described_and_broken_here_or_in_a_case():
    of_cases = {rule for case in CASES.values() for _, rule in case.wrong.values()} - {"refused"}
    shared, _, table = GUIDE.read_text().partition("These rules for [programs]")[2].partition("| rule |")
    own = re.findall(r"^\| `([a-z ]+)` \|", table.partition("\n\n")[0], re.MULTILINE)
    assert sorted([*own, *re.findall(r"`([a-z ]+)`", shared)]) == sorted({*FAULTS, *of_cases, "route", "ranks", "size"})


def test_semaphores_that_begin_high_order_nothing():
    """Nobody has to wait for them: what they ordered races, or is read too early. Their number takes no memory."""
    high = tuple(2**40 for _ in ALLREDUCE.ranks[0].semaphores)
    rules = {violation.rule for violation in check_program(rank_changed(ALLREDUCE, semaphores=high))}
    assert set() < rules <= {"race", "uninitialised"}


def test_a_plan_too_large_for_the_check_or_its_clocks_is_refused(monkeypatch):
    assert {violation.rule for violation in plan_execution_violations(ALLREDUCE, max_cells=7)} == {"size"}
    monkeypatch.setattr("chorale.synth.programs.plans.run.MAX_CLOCK_ENTRIES", 3)
    [found] = plan_execution_violations(ALLREDUCE)
    assert (found.rule, "clock entries" in found.message) == ("size", True)


def gathered(rank: int) -> Sequence[Sequence[Json]]:
    return [[*ENTRY, move("put", [local("o", rank)], [remote(rank)], channel_ids=[0]), *meet()]]


def messages(document: Json) -> list[str]:
    return [violation.message for violation in check_program(parse_plan(json.dumps(document).encode()))]


def test_a_race_names_the_chunk_and_the_other_operation_and_a_late_put_is_named():
    document = plan("allgather", (1, 2, 0), gathered)
    assert messages(document) == []
    ops_of(document, 0).insert(5, ops_of(document, 0)[4])
    assert messages(document)[0] == (
        "rank 0, block 0, step 5: touches o[0] of rank 1, which other threads of the block touch at step 4, "
        "without a nop between"
    )
    del ops_of(document, 0)[5:7]
    expected = "rank 1: its call may end before rank 0, block 0, step 4 has written to o[0] of rank 1"
    assert messages(document)[0].startswith(expected)


def test_blocks_that_wait_for_each_other_are_named_with_what_they_wait_for():
    def signals(rank: int) -> Sequence[Sequence[Json]]:
        return [[tell("wait"), tell("signal"), *gathered(rank)[0]]]

    def semaphores(rank: int) -> Sequence[Sequence[Json]]:
        tells = [
            {"name": name, "semaphore_ids": [number]} for name in ("sem_acquire", "sem_release") for number in (0, 1)
        ]
        return [[tells[0], tells[3], *gathered(rank)[0]], [tells[1], tells[2]]]

    why = "wait never ends: it waits for a signal of rank {} on memory channel 0"
    expected = [f"rank {rank}, block 0, step 0: {why.format(1 - rank)}" for rank in (0, 1)]
    assert messages(plan("allgather", (1, 2, 0), signals)) == expected
    assert messages(plan("allgather", (1, 2, 0), semaphores, semaphores=(0, 0))) == [
        f"rank {rank}, block {block}, step 0: sem_acquire never ends: it waits for semaphore {block}"
        for rank in (0, 1)
        for block in (0, 1)
    ]


@pytest.mark.parametrize("rank", [0, 1])
def test_packets_that_nothing_writes_are_named_before_what_follows_from_them(rank):
    def blocks(rank: int) -> Sequence[Sequence[Json]]:
        put = move("ppkt", [local("o", rank)], [remote(rank)], channel_ids=[0])
        return [[put, move("upkt", [local("s", 1 - rank)], [local("o", 1 - rank)])]]

    document = plan("allgather", (1, 2, 2), blocks, buffer="s", protocol="LL", double=True)
    assert messages(document) == []
    del ops_of(document, rank)[0]
    place, why = f"rank {1 - rank}, block 0, step 1", f"packets in s[{rank}] of rank {1 - rank}, which nothing writes"
    assert messages(document) == [f"{place}: upkt never ends: it waits for {why}"]
