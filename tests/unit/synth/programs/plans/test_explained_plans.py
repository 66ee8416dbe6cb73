"""What is said of the faults of plans: other accesses, and who waits for whom."""

import json
from collections.abc import Sequence

import pytest

from chorale.synth.targets.judge import check_program
from chorale.synth.targets.mscclpp_text import parse_plan
from tests.conformance.plan_cases import ENTRY, Json, local, meet, move, ops_of, plan, remote, tell


def gathered(rank: int) -> Sequence[Sequence[Json]]:
    return [[*ENTRY, move("put", [local("o", rank)], [remote(rank)], channel_ids=[0]), *meet()]]


def allgather() -> Json:
    return plan("allgather", (1, 2, 0), gathered)


def messages(document: Json) -> list[str]:
    return [violation.message for violation in check_program(parse_plan(json.dumps(document).encode()))]


def test_a_right_plan_has_nothing_to_explain():
    assert messages(allgather()) == []


def test_a_race_names_the_chunk_and_the_other_operation():
    document = allgather()
    ops_of(document, 0).insert(5, move("put", [local("o", 0)], [remote(0)], channel_ids=[0]))
    assert messages(document)[0] == (
        "rank 0, block 0, step 5: touches o[0] of rank 1, which other threads of the block touch at step 4, "
        "without a nop between"
    )


def test_a_put_that_may_be_late_is_named():
    document = allgather()
    del ops_of(document, 0)[5]
    expected = "rank 1: its call may end before rank 0, block 0, step 4 has written to o[0] of rank 1"
    assert messages(document)[0].startswith(expected)


def test_ranks_that_wait_for_each_other_are_followed():
    def blocks(rank: int) -> Sequence[Sequence[Json]]:
        return [[tell("wait"), tell("signal"), *gathered(rank)[0]]]

    assert messages(plan("allgather", (1, 2, 0), blocks))[0] == (
        "rank 0, block 0, step 0: wait never ends: it waits for a signal of rank 1 on memory channel 0, which rank 1, "
        "block 0, step 1 would give; that block hangs at step 0"
    )


def test_blocks_that_wait_for_semaphores_of_each_other_are_followed():
    def blocks(rank: int) -> Sequence[Sequence[Json]]:
        tells = [
            {"name": name, "semaphore_ids": [number]} for name in ("sem_acquire", "sem_release") for number in (0, 1)
        ]
        return [[tells[0], tells[3], *gathered(rank)[0]], [tells[1], tells[2]]]

    assert messages(plan("allgather", (1, 2, 0), blocks, semaphores=(0, 0)))[0] == (
        "rank 0, block 0, step 0: sem_acquire never ends: it waits for semaphore 0, which rank 0, block 1, step 1 "
        "would give; that block hangs at step 0"
    )


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
