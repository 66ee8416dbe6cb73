"""Small plans that are right, one for each rule of MSCCL++'s executor, and the least change that makes each wrong.

Plans are JSON for two ranks, as the executor reads them, written by hand here.
"""

import copy
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from chorale.synth.programs.plans.plan import ExecutionPlan
from chorale.synth.targets.mscclpp_text import parse_plan

Json = dict[str, Any]
Blocks = Callable[[int], Sequence[Sequence[Json]] | Sequence[Json]]
"""Operations of the blocks of a rank, or of its only one."""
Edit = Callable[[Json], None]
"""Changes a plan in place."""


@dataclass(frozen=True, slots=True)
class Case:
    """A right plan, and edits that break a rule, by what is wrong."""

    plan: Json
    wrong: dict[str, tuple[Edit, str]] = field(default_factory=dict)


NOP: Json = {"name": "nop"}


def local(buffer: str, index: int, size: int = 1) -> Json:
    return {"type": buffer, "index": index, "size": size}


def remote(index: int, size: int = 1, number: int = 0) -> Json:
    return {"buffer_id": number, "index": index, "size": size}


def group(index: int, number: int = 0) -> Json:
    return {"switch_channel_id": number, "index": index, "size": 1}


def move(name: str, sources: Sequence[Json], targets: Sequence[Json], **more: Any) -> Json:
    return {"name": name, "src_buff": list(sources), "dst_buff": list(targets), "channel_type": "memory", **more}


def tell(name: str, number: int = 0, kind: str = "memory") -> Json:
    return {"name": name, "channel_ids": [number], "channel_type": kind}


def meet(kind: str = "memory", relaxed: bool = False, number: int = 0) -> list[Json]:
    """Signal and wait, between nops."""
    prefix = "rlx" if relaxed else ""
    return [NOP, tell(f"{prefix}signal", number, kind), tell(f"{prefix}wait", number, kind), NOP]


ENTRY = meet(relaxed=True)


def through_port(name: str, sources: Sequence[Json], targets: Sequence[Json]) -> Json:
    return move(name, sources, targets, channel_type="port", channel_ids=[0])


def by_switch(name: str, sources: Sequence[Json], targets: Sequence[Json], **more: Any) -> Json:
    return move(name, sources, targets, channel_type="switch", **more)


def sent(rank: int, name: str = "put", **more: Any) -> Json:
    return move(name, [local("o", rank)], [remote(rank)], **more)


def unpacked(rank: int, **more: Any) -> Json:
    return move("upkt", [local("s", 1 - rank)], [local("o", 1 - rank)], **more)


def part(number: int, parts: int = 2) -> Json:
    return {"tbg_info": {"tb_id": number, "tbg_size": parts}}


def pipeline(*ops: Json) -> list[Json]:
    return [{"name": "pipeline", "iter_context": {"unit_size": 1024, "num_chunks": 1}, "ops": list(ops)}]


def plan(
    collective: str,
    chunks: tuple[int, int, int],
    blocks: Blocks,
    *,
    buffer: str = "o",
    in_place: bool = True,
    protocol: str = "Simple",
    double: bool = False,
    switch: str | None = None,
    semaphores: Sequence[int] = (),
) -> Json:
    """Return a plan whose blocks, or whose only one, have a memory and a port channel each with the other rank.

    buffer: what they reach of the other rank; switch: the buffer of both under a switch channel, if any
    """
    groups = [{"size": 2, "ranks": [0, 1]}]
    switches = [] if switch is None else [{"channel_type": "switch", "buffer_type": switch, "rank_groups": groups}]

    def gpu(rank: int) -> Json:
        given: Any = blocks(rank)
        own = [given] if isinstance(given[0], dict) else given
        kinds = [{"channel_type": kind, "connected_to": [1 - rank] * len(own)} for kind in ("memory", "port")]
        return {
            **dict(zip(("id", "input_chunks", "output_chunks", "scratch_chunks"), (rank, *chunks), strict=True)),
            "channels": [*kinds, *switches],
            "remote_buffers": [{"rank": 1 - rank, "type": buffer, "access_channel_types": ["memory", "port"]}],
            "semaphores": [{"init_value": value} for value in semaphores],
            "threadblocks": [_block(index, ops, bool(switches)) for index, ops in enumerate(own)],
        }

    made = {"name": "case", "collective": collective, "protocol": protocol, "inplace": in_place}
    return {**made, "use_double_scratch_buffer": double, "gpus": [gpu(rank) for rank in range(2)]}


def _block(index: int, ops: Sequence[Json], has_switch: bool) -> Json:
    channels = [{"channel_type": kind, "channel_ids": [index]} for kind in ("memory", "port")]
    refs = [{"access_channel_type": kind, "remote_buffer_ids": [0]} for kind in ("memory", "port")]
    return {
        "id": index,
        "channels": channels + [{"channel_type": "switch", "channel_ids": [0]}] * has_switch,
        "remote_buffer_refs": refs,
        "ops": copy.deepcopy(list(ops)),
    }


def ops_of(document: Json, rank: int, block: int = 0) -> list[Json]:
    operations: list[Json] = document["gpus"][rank]["threadblocks"][block]["ops"]
    return operations


def each_block(block: int, change: Callable[[list[Json]], list[Json]]) -> Edit:
    """Give a block of both ranks the operations that `change` makes of its own."""

    def edit(document: Json) -> None:
        for gpu in document["gpus"]:
            own = gpu["threadblocks"][block]
            own["ops"] = copy.deepcopy(change(own["ops"]))

    return edit


def without(*numbers: int, block: int = 0) -> Edit:
    return each_block(block, lambda ops: [each for number, each in enumerate(ops) if number not in numbers])


def changed(number: int, block: int = 0, **values: Any) -> Edit:
    return each_block(block, lambda ops: [*ops[:number], {**ops[number], **values}, *ops[number + 1 :]])


def added(*items: Json, block: int = 0) -> Edit:
    return each_block(block, lambda ops: [*ops, *items])


def setting(**values: Any) -> Edit:
    return lambda document: document.update(values)


def all_of(*edits: Edit) -> Edit:
    def edit(document: Json) -> None:
        for each in edits:
            each(document)

    return edit


def nobody_waits_for_a_part(document: Json) -> None:
    for rank in range(2):
        del ops_of(document, rank, 1)[0]["ops"][0]


def high_semaphores(document: Json) -> None:
    for gpu in document["gpus"]:
        gpu["semaphores"][0]["init_value"] = 1


def no_packets_of_the_sum(document: Json) -> None:
    for rank in range(2):
        step = ops_of(document, rank)[1]
        step.update(name="repkt", dst_buff=step["dst_buff"][:1])


def sum_of_other_chunks(document: Json) -> None:
    ops_of(document, 0)[4].update(src_buff=[local("i", 0), remote(1)])


def gather(blocks: Blocks, scratch: int = 0, **more: Any) -> Json:
    return plan("allgather", (1, 2, scratch), blocks, **more)


def summed(blocks: Blocks, chunks: int = 2, scratch: int = 0, **more: Any) -> Json:
    return plan("allreduce", (chunks, chunks, scratch), blocks, **more)


LL: Json = {"buffer": "s", "protocol": "LL", "double": True, "scratch": 2}


def _packets(name: str, *extra: Json) -> Callable[[int], list[list[Json]]]:
    """Both send their chunk as packets to slot 0, and reduce with what arrives by the operation `name`."""

    def blocks(rank: int) -> list[list[Json]]:
        return [
            [
                move("ppkt", [local("i", 0)], [remote(rank)]),
                NOP,
                move(name, [local("i", 0), local("s", 1 - rank)], [local("i", 0), *extra]),
            ]
        ]

    return blocks


CASES: dict[str, Case] = {
    "put": Case(
        gather(lambda r: [*ENTRY, sent(r), *meet()]),
        {
            "nobody waits for the other to begin": (without(1, 2), "race"),
            "only relaxed signals after the put": (
                all_of(changed(6, name="rlxsignal"), changed(7, name="rlxwait")),
                "late put",
            ),
            "a signal before the threads have met": (without(5), "late put"),
            "nothing says that the put is over": (without(6, 7), "result"),
            "a wait without a signal": (without(6), "signals"),
            "a chunk too many": (changed(4, src_buff=[local("o", 0, 2)], dst_buff=[remote(0, 2)]), "uninitialised"),
            "another chunk": (changed(4, dst_buff=[remote(0)]), "race"),
            "a chunk outside": (changed(4, dst_buff=[remote(2)]), "operand"),
        },
    ),
    "get": Case(
        gather(lambda r: [*ENTRY, move("get", [remote(1 - r)], [local("o", 1 - r)]), *meet()]),
        {
            "nobody waits for the other to begin": (without(1, 2), "race"),
            "nothing says that the reading is over": (without(6, 7), "race"),
            "another chunk on either side": (changed(4, src_buff=[remote(0)], dst_buff=[local("o", 1)]), "operand"),
        },
    ),
    "port put with signal": Case(
        gather(
            lambda r: [*meet("port"), through_port("pws", [local("o", r)], [remote(r)]), tell("wait", 0, "port"), NOP],
        ),
        {
            "nobody waits for the other to begin": (without(1, 2), "race"),
            "no port is named": (changed(4, channel_ids=[]), "channel"),
            "by memory": (changed(4, channel_type="memory"), "channel"),
            "nobody waits": (without(5), "signals"),
            "only a put": (changed(4, name="put"), "signals"),
        },
    ),
    "port put with signal and flush": Case(
        gather(
            lambda r: [
                *meet("port")[:-1],  # the thread that has waited tells the port
                through_port("pwsf", [local("o", r)], [remote(r)]),
                tell("wait", 0, "port"),
                {"name": "flush", "channel_ids": [0], "channel_type": "port"},
                NOP,
            ],
        )
    ),
    "a source that a port still reads": Case(
        gather(
            lambda r: [
                *meet("port"),
                move("copy", [local("o", r)], [local("s", 0)]),
                NOP,
                through_port("pwsf", [local("s", 0)], [remote(r)]),
                NOP,
                move("copy", [local("o", r)], [local("s", 0)]),
                tell("wait", 0, "port"),
                NOP,
            ],
            scratch=1,
        ),
        {
            "no flush before the source is written again": (changed(6, name="pws"), "race"),
            "no nop before the port reads": (without(5), "race"),
        },
    ),
    "read and reduce": Case(
        summed(
            lambda r: [
                *ENTRY,
                move("rres", [local("i", r), remote(r)], [local("i", r), remote(r)], reduce_op="sum"),
                *meet(),
            ],
            buffer="i",
        ),
        {
            "the sum is not sent": (changed(4, name="rre", dst_buff=[local("i", 0)]), "race"),
            "nobody waits for the other to begin": (without(1, 2), "race"),
            "another operation": (changed(4, reduce_op="max"), "refused"),
            "a sum of other chunks": (sum_of_other_chunks, "race"),
        },
    ),
    "reduce and send": Case(
        summed(
            lambda r: [
                *ENTRY,
                move("put", [local("i", 1 - r)], [remote(0)]),
                *meet(),
                move("re", [local("i", r), local("s", 0)], [local("i", r)]),
                NOP,
                move("put", [local("i", r)], [remote(1)]),
                *meet(),
                move("copy", [local("s", 1)], [local("i", 1 - r)]),
            ],
            buffer="s",
            scratch=2,
        ),
        {
            "no nop between the sum and its sending": (without(10), "race"),
            "no nop between a wait and the sum": (without(8), "race"),
        },
    ),
    "res": Case(
        summed(
            lambda r: [
                *ENTRY,
                move("put", [local("i", 0)], [remote(0)]),
                *meet(),
                move("res", [local("i", 0), local("s", 0)], [local("o", 0)]),
                *meet(),
            ],
            buffer="s",
            in_place=False,
            chunks=1,
            scratch=1,
        ),
        {"one source twice": (changed(9, src_buff=[local("s", 0), local("s", 0)]), "reduction")},
    ),
    "packets": Case(
        gather(lambda r: [sent(r, "ppkt"), unpacked(r)], **LL),
        {
            "without halves of scratch": (setting(use_double_scratch_buffer=False), "race"),
            "without room for flags": (setting(protocol="Simple"), "packets"),
            "nobody sends": (without(0), "deadlock"),
            "plain data in scratch": (changed(1, name="copy"), "packets"),
            "a slot written twice": (added(move("ppkt", [local("o", 0)], [remote(0)])), "race"),
        },
    ),
    "packets by turns": Case(
        summed(_packets("repkt"), chunks=1, **LL),
        {
            "one half only": (setting(use_double_scratch_buffer=False), "race"),
            "the own packets": (changed(2, src_buff=[local("i", 0), local("s", 0)]), "deadlock"),
        },
    ),
    "reduce and send packets": Case(
        summed(
            lambda r: [
                move("ppkt", [local("i", 1 - r)], [remote(r)]),
                move("respkt", [local("i", r), local("s", 1 - r)], [local("i", r), remote(2 + r)]),
                move("upkt", [local("s", 3 - r)], [local("i", 1 - r)]),
            ],
            buffer="s",
            protocol="LL",
            scratch=4,
        ),
        {
            "no packets of the sum": (no_packets_of_the_sum, "deadlock"),
            "packets into output": (changed(1, dst_buff=[local("i", 0), local("i", 1)]), "operand"),
        },
    ),
    "reduce, copy and send packets": Case(
        summed(
            lambda r: [
                move("cpkt", [local("i", 0)], [local("s", 5)]),
                move("rppkt", [local("s", 5)], [remote(r)]),
                move("recspkt", [local("i", 0), local("s", 1 - r)], [local("o", 0), local("s", 4), remote(2 + r)]),
            ],
            **LL | {"scratch": 6},
            in_place=False,
            chunks=1,
        ),
        {"the sum is sent nowhere else": (changed(2, dst_buff=[local("o", 0), remote(2)]), "operand")},
    ),
    "reduce and copy packets": Case(
        summed(
            lambda r: [
                move("ppkt", [local("i", 0)], [remote(r)]),
                move("recpkt", [local("i", 0), local("s", 1 - r)], [local("o", 0), local("s", 2)]),
            ],
            **LL | {"scratch": 3},
            in_place=False,
            chunks=1,
        ),
        {"the copy is no scratch": (changed(1, dst_buff=[local("o", 0), local("o", 0)]), "operand")},
    ),
    "packets through a port": Case(
        gather(
            lambda r: [
                move("cpkt", [local("o", r)], [local("s", 2)]),
                through_port("rppkt", [local("s", 2)], [remote(r)]),
                unpacked(r),
            ],
            **LL | {"scratch": 3},
        ),
        {
            "nothing to send on": (without(0), "deadlock"),
            "sent on without waiting": (all_of(without(0), changed(0, name="ppkt")), "uninitialised"),
        },
    ),
    "packets put by a port": Case(
        gather(
            lambda r: [
                move("cpkt", [local("o", r)], [local("s", 2)]),
                NOP,
                through_port("ppkt", [local("s", 2)], [remote(r)]),
                unpacked(r),
            ],
            **LL | {"scratch": 3},
        ),
        {"before all threads have written them": (without(1), "race")},
    ),
    "packets of groups": Case(
        gather(
            lambda r: [
                *([sent(r, "ppkt", **part(number))] for number in range(2)),
                *([unpacked(r, **part(number))] for number in range(2)),
            ],
            **LL,
        ),
        {"both send the same part": (changed(0, block=1, **part(0)), "race")},
    ),
    "switch by parts": Case(
        summed(
            lambda r: [
                *ENTRY,
                *pipeline(by_switch("glres", [group(r)], [group(r)], reduce_op="sum")),
                *meet(relaxed=True),
            ],
            switch="i",
        ),
        {"a pipeline in a pipeline": (changed(4, ops=[{"name": "pipeline", "ops": []}]), "refused")},
    ),
    "switch": Case(
        summed(
            lambda r: [*ENTRY, by_switch("glres", [group(r)], [group(r)]), *meet(relaxed=True)],
            switch="i",
        ),
        {
            "nobody waits for the other to begin": (without(1, 2), "race"),
            "nothing says that it is over": (without(6, 7), "result"),
            "both do the same chunk": (changed(4, src_buff=[group(0)], dst_buff=[group(0)]), "race"),
            "without a switch": (changed(4, channel_type="memory"), "channel"),
        },
    ),
    "switch stores": Case(
        gather(
            lambda r: [*ENTRY, by_switch("gstore", [local("o", r)], [group(r)]), *meet()],
            switch="o",
        ),
        {"another chunk": (changed(4, dst_buff=[group(0)]), "race")},
    ),
    "switch sums": Case(
        plan(
            "reducescatter",
            (2, 1, 0),
            lambda r: [*ENTRY, by_switch("glre", [group(r)], [local("o", 0)]), *meet()],
            switch="i",
            in_place=False,
        ),
        {"the chunk of the other": (changed(4, src_buff=[group(0)]), "result")},
    ),
    "switch packets": Case(
        gather(
            lambda r: [by_switch("gstorepkt", [local("o", r)], [group(r)]), unpacked(r)],
            switch="s",
            protocol="LL",
            double=True,
            scratch=2,
        ),
        {"one half only": (setting(use_double_scratch_buffer=False), "race")},
    ),
    "pipeline": Case(
        gather(
            lambda r: [
                pipeline(
                    *ENTRY,
                    move("put", [local("o", r)], [remote(0)]),
                    *meet(),
                    {"name": "sem_release", "semaphore_ids": [0]},
                ),
                pipeline(
                    {"name": "sem_acquire", "semaphore_ids": [0]},
                    NOP,
                    move("copy", [local("s", 0)], [local("o", 1 - r)]),
                    NOP,
                ),
            ],
            buffer="s",
            semaphores=[0],
            scratch=1,
        ),
        {
            "another number of parts": (
                changed(0, block=1, iter_context={"unit_size": 512, "num_chunks": 1}),
                "semaphore",
            ),
            "chunks that are not those of the pipeline": (
                changed(0, iter_context={"unit_size": 1024, "num_chunks": 2}),
                "pipeline",
            ),
            "nobody waits for a part": (nobody_waits_for_a_part, "semaphore"),
            "a semaphore that begins high": (high_semaphores, "uninitialised"),
        },
    ),
    "groups and barriers": Case(
        gather(
            lambda r: [
                [
                    *ENTRY,
                    move("copy", [local("o", r)], [local("s", 0)], **part(number)),
                    {"name": "barrier", "barrier_id": 0, "num_threadblocks": 2},
                    move("put", [local("s", 0)], [remote(r)], **part(1 - number)),
                    *meet(),
                ]
                for number in range(2)
            ],
            scratch=1,
        ),
        {
            "no barrier": (all_of(without(5), without(5, block=1)), "uninitialised"),
            "one block does not come": (without(5), "barrier"),
            "a barrier for more": (changed(5, num_threadblocks=3), "barrier"),
            "both do the same part": (changed(6, **part(0)), "race"),
            "a part that does not exist": (changed(6, **part(2)), "group"),
        },
    ),
}


def document_of(name: str, wrong: str | None = None) -> Json:
    document = copy.deepcopy(CASES[name].plan)
    if wrong is not None:
        CASES[name].wrong[wrong][0](document)
    return document


def plan_case(name: str, wrong: str | None = None) -> ExecutionPlan:
    return parse_plan(json.dumps(document_of(name, wrong)).encode())
