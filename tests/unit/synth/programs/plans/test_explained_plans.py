"""What is behind the faults of plans: parts that are missing or doubled, other accesses, and who waits for whom."""

import json
from collections.abc import Sequence

import pytest

from chorale.synth.programs.explanation import Explanation
from chorale.synth.programs.plans.explanation import plan_explanations
from chorale.synth.programs.program import ProgramViolation
from chorale.synth.targets.judge import check_program
from chorale.synth.targets.mscclpp_reading import parse_plan
from tests.command import chorale
from tests.conformance.plan_cases import ENTRY, NOP, Json, local, meet, move, ops_of, plan, remote, tell


def gathered(rank: int) -> Sequence[Sequence[Json]]:
    return [[*ENTRY, move("put", [local("o", rank)], [remote(rank)], channel_ids=[0]), *meet()]]


def allgather() -> Json:
    return plan("allgather", (1, 2, 0), gathered)


def explained(document: Json) -> list[tuple[ProgramViolation, Explanation | None]]:
    read = parse_plan(json.dumps(document).encode())
    violations = check_program(read)
    return list(zip(violations, plan_explanations(read, violations), strict=True))


def first(document: Json) -> tuple[str, Explanation]:
    violation, explanation = explained(document)[0]
    assert explanation is not None
    return violation.message, explanation


def test_a_right_plan_has_nothing_to_explain():
    assert explained(allgather()) == []


def test_a_put_that_is_missing_leaves_its_chunk_where_it_was():
    document = allgather()
    del ops_of(document, 0)[4]
    message, explanation = first(document)
    assert message == "rank 1: o[0] holds nothing, must hold chunk 0 of rank 0"
    assert explanation.text == (
        "nothing writes o[0] of rank 1; chunk 0 of rank 0 never leaves o[0] of rank 0: no instruction reads it"
    )


def test_a_part_that_is_overwritten_has_both_instructions_named():
    document = allgather()
    ops_of(document, 1)[-1:] = [NOP, move("copy", [local("o", 1)], [local("o", 0)])]
    message, explanation = first(document)
    assert message == "rank 1: o[0] holds chunk 1 of rank 1, must hold chunk 0 of rank 0"
    assert explanation.positions == ((1, 0, 9), (0, 0, 4))
    assert "put there by rank 0, block 0, step 4, where rank 1, block 0, step 9 overwrote it" in explanation.text


def test_a_contribution_that_is_added_twice_is_followed_to_both_summands():
    def blocks(rank: int) -> Sequence[Sequence[Json]]:
        put = move("put", [local("o", 0)], [remote(rank)], channel_ids=[0])
        sums = [move("re", [local("o", 0), local("s", 1 - rank)], [local("o", 0)]), NOP]
        return [[*ENTRY, put, *meet(), *sums, *sums]]

    message, explanation = first(plan("allreduce", (1, 1, 2), blocks, buffer="s"))
    assert message == "rank 0, block 0, step 11: adds chunk 0 of rank 1 to chunk 0 of ranks 0, 1"
    assert explanation.text.startswith(
        "chunk 0 of rank 1 is in both summands; one was put there by rank 0, block 0, step"
    )
    assert explanation.positions[-1] == (1, 0, 4)


def test_a_race_names_the_chunk_and_the_other_operation():
    document = allgather()
    ops_of(document, 0).insert(5, move("put", [local("o", 0)], [remote(0)], channel_ids=[0]))
    message, explanation = first(document)
    assert message == (
        "rank 0, block 0, step 5: touches o[0] of rank 1, which other threads of the block touch at step 4, "
        "without a nop between"
    )
    assert explanation.positions == ((0, 0, 4),)


def test_a_put_that_may_be_late_is_named():
    document = allgather()
    del ops_of(document, 0)[5]
    message, explanation = first(document)
    assert message.startswith("rank 1: its call may end before rank 0, block 0, step 4 has written to o[0] of rank 1")
    assert explanation.positions == ((0, 0, 4),)


def test_ranks_that_wait_for_each_other_are_followed():
    def blocks(rank: int) -> Sequence[Sequence[Json]]:
        return [[tell("wait"), tell("signal"), *gathered(rank)[0]]]

    message, explanation = first(plan("allgather", (1, 2, 0), blocks))
    assert message == "rank 0, block 0, step 0: wait never ends"
    assert explanation.text == (
        "it waits for a signal of rank 1 on memory channel 0, which rank 1, block 0, step 1 would give; "
        "that block hangs at step 0"
    )
    assert explanation.positions == ((0, 0, 0), (1, 0, 1))


def test_blocks_that_wait_for_semaphores_of_each_other_are_followed():
    def blocks(rank: int) -> Sequence[Sequence[Json]]:
        tells = [
            {"name": name, "semaphore_ids": [number]} for name in ("sem_acquire", "sem_release") for number in (0, 1)
        ]
        return [[tells[0], tells[3], *gathered(rank)[0]], [tells[1], tells[2]]]

    message, explanation = first(plan("allgather", (1, 2, 0), blocks, semaphores=(0, 0)))
    assert message == "rank 0, block 0, step 0: sem_acquire never ends"
    assert (
        "waits for semaphore 0, which rank 0, block 1, step 1 would give; that block hangs at step 0"
        in explanation.text
    )


@pytest.mark.parametrize("rank", [0, 1])
def test_packets_that_nothing_writes_are_named_before_what_follows_from_them(rank):
    def blocks(rank: int) -> Sequence[Sequence[Json]]:
        put = move("ppkt", [local("o", rank)], [remote(rank)], channel_ids=[0])
        return [[put, move("upkt", [local("s", 1 - rank)], [local("o", 1 - rank)])]]

    document = plan("allgather", (1, 2, 2), blocks, buffer="s", protocol="LL", double=True)
    assert explained(document) == []
    del ops_of(document, rank)[0]
    ((violation, explanation),) = explained(document)
    assert violation.message == f"rank {1 - rank}, block 0, step 1: upkt never ends"
    assert explanation is not None
    assert explanation.text == f"it waits for packets in s[{rank}] of rank {1 - rank}, which nothing writes"


def test_the_command_explains_plans(tmp_path, capsys):
    document = allgather()
    del ops_of(document, 0)[4]
    file = tmp_path / "a.json"
    file.write_text(json.dumps(document))
    lifted = chorale(capsys, "lift", file, "--spec", "complete:2", "--json")
    assert lifted.code == 1
    assert lifted.document["explanations"][0]["text"].startswith("nothing writes o[0] of rank 1")
