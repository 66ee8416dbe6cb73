"""Turns schedules in which switches reduce or multicast into MSCCL++ plans, or into programs with a process per switch.

A plan is possible if all the schedule's trees are stars around one switch. Each rank is responsible for some chunks:
with one operation (`glres`), it makes the switch sum these chunks over all ranks and store the sums at all ranks. All
ranks exchange relaxed signals before this operation, to know that all ranks have begun, and after it, to know that all
have finished. No MSCCL++ release can read an operation that stores the sums at one rank only, so other trees, for
example over several boxes, cannot become plans.

In a program with processes, each rank is a process, and each switch that reduces or multicasts is another process,
numbered after the ranks. CPUs emulate switches in this way, and parameter servers and SmartNICs also work like this. A
process stores data before it forwards them, so what a switch does in one step of the schedule takes several steps here.
"""

from dataclasses import fields

import numpy as np
from numpy.typing import NDArray

from chorale.synth.collective import CollectiveName
from chorale.synth.errors import InvalidInput
from chorale.synth.lowering.fragments import contiguous_runs
from chorale.synth.lowering.messages import ChannelMessages
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.programs.plans import plan
from chorale.synth.programs.program import Buffer
from chorale.synth.schedule.schedule import ColumnBounds, ProcessSchedule, Routes, Schedule
from chorale.synth.targets.registry import LONGEST_NAME
from chorale.synth.topology.expansions import process_network, promoted

Numbers = NDArray[np.int64]
PROCESS_TARGET = "oneccl-xml"
"""The only target whose programs can have processes for switches. Its programs run on CPUs."""


def switch_plan(schedule: Schedule, options: LoweringOptions) -> plan.ExecutionPlan:
    """Return an execution plan for the verified `schedule`. O(rows + ranks^2).

    Each rank has `options.block_group` thread blocks, or more if they are needed for a channel to each peer.

    Raises:
        InvalidInput: `options` require another target or protocol, or the trees are not stars around one switch that is
            linked to all ranks.
    """
    if options.target != plan.TARGET:
        rule = f"schedules in which switches add or multicast can only become {plan.TARGET} plans"
        raise InvalidInput(rule, options.target, "use that target, or a schedule of ranks alone")
    if options.protocol != "Simple" or options.reads or options.pipeline_bytes:
        rule = "plans in which a switch adds need protocol Simple, without reads and pipelines"
        raise InvalidInput(rule, "one of them", "leave them out")
    # the rank that receives each chunk's sum from the switch
    ranks, moved, links = schedule.topology.compute_count, schedule.transfers, schedule.topology.links
    source = schedule.routes.sources(links)[moved.route].astype(np.int64)
    target = schedule.routes.destinations(links)[moved.route].astype(np.int64)
    chunks = schedule.shard_count * schedule.chunks_per_shard
    low = moved.shard.astype(np.int64) * schedule.chunks_per_shard + moved.lo
    high = low + moved.hi - moved.lo
    adds = moved.reduce == 1
    # In a star, the switch sends the sum of each chunk to one rank (the root), which sends the result back to the
    # switch. All other ranks send their contribution to the switch and receive the result from it.
    groups = (adds & (source >= ranks), ~adds & (target >= ranks), adds & (target >= ranks), ~adds & (source >= ranks))
    counts = []
    for rows in groups:
        changes = np.zeros(chunks + 1, dtype=np.int64)
        np.add.at(changes, low[rows], 1)
        np.add.at(changes, high[rows], -1)
        counts.append(np.cumsum(changes[:-1]))  # number of rows that contain each chunk
    expected = (1, 1, ranks - 1, ranks - 1)
    switches = set(source[source >= ranks].tolist()) | set(target[target >= ranks].tolist())
    is_star = all(bool((count == number).all()) for count, number in zip(counts, expected, strict=True))
    between = bool(((source < ranks) & (target < ranks)).any())
    if schedule.collective.name != CollectiveName.ALLREDUCE or not is_star or between or len(switches) != 1:
        rule = "plans use a switch for an allreduce whose trees are stars around one switch that joins all ranks"
        value = f"{schedule.collective.name.value} over {len(switches)} switches{', and between ranks' * between}"
        raise InvalidInput(rule, value, "use one box, or a schedule of ranks alone")
    roots = np.zeros(chunks, dtype=np.int64)
    for row in np.flatnonzero(adds & (source >= ranks)).tolist():
        roots[low[row] : high[row]] = target[row]
    blocks = max(options.block_group, -(-(ranks - 1) // plan.MAX_BLOCK_CHANNELS))
    bodies = tuple(
        _rank(rank, ranks, blocks, np.flatnonzero(roots == rank), len(roots), options) for rank in range(ranks)
    )
    last = plan.bounded_bytes(options.max_bytes, len(roots), 0)
    name = f"{schedule.collective.name.value} {schedule.method} {schedule.topology.spec}"
    return plan.ExecutionPlan(
        name[:LONGEST_NAME], schedule.collective, options.in_place, bodies, options.min_bytes, last, schedule.id
    )


def _rank(rank: int, ranks: int, blocks: int, own: Numbers, chunks: int, options: LoweringOptions) -> plan.RankPlan:
    """Return the plan of `rank`: it synchronises with all ranks before and after the switch sums the chunks `own`."""
    peers = [peer for peer in range(ranks) if peer != rank]
    buffers: list[Buffer] = ["i"] if options.in_place else ["i", "o"]
    nop = plan.Operation(plan.Action.NOP)
    sync = [nop] if blocks == 1 else [plan.Operation(plan.Action.BARRIER, barrier=(0, blocks))]
    first, count = contiguous_runs((own,), max(1, len(own)))
    bodies = []
    for number, share in enumerate(np.array_split(np.arange(len(peers)), blocks)):
        sums = [
            plan.Operation(
                plan.Action.GROUP_LOAD_REDUCE_STORE,
                (plan.Operand(chunk, length, switch=0),),
                (plan.Operand(chunk, length, switch=len(buffers) - 1),),
                kind="switch",
                part=(number, blocks),
            )
            for chunk, length in zip(own[first].tolist(), count.tolist(), strict=True)
        ]
        runs = [
            tuple(range(start, min(start + plan.MAX_OPERATION_CHANNELS, len(share))))
            for start in range(0, len(share), plan.MAX_OPERATION_CHANNELS)
        ]
        signals = [plan.Operation(plan.Action.RELAXED_SIGNAL, channels=run) for run in runs]
        meeting = [nop, *signals, *(plan.Operation(plan.Action.RELAXED_WAIT, channels=run) for run in runs), nop]
        operations = (*meeting, *sync, *sums, *sync, *meeting)
        bodies.append(plan.PlanBlock(tuple(share.tolist()), (), operations, switches=tuple(range(len(buffers)))))
    switches = tuple((buffer, tuple(range(ranks))) for buffer in buffers)
    return plan.RankPlan(chunks, chunks, 0, tuple(peers), (), (), tuple(bodies), switches=switches)


def schedule_of_processes(schedule: Schedule) -> ProcessSchedule:
    """Convert `schedule`, in which switches reduce or multicast, into a schedule for processes.

    If data pass several switches within a step, the hops get consecutive steps. O(rows * switches in a chain).
    """
    topology = schedule.topology
    switches = tuple(sorted(topology.abilities))
    origin = promoted(topology, switches).origin
    link_of = np.full(len(topology.links), -1, dtype=np.int32)
    link_of[origin] = np.arange(len(origin))
    routes = Routes(schedule.routes.offsets, link_of[schedule.routes.link_ids])
    rows = schedule.transfers
    # for each row, through how many switches its chunks have already passed in the same step
    rows, ranks = schedule.transfers, schedule.topology.compute_count
    src, dst = schedule.src.tolist(), schedule.dst.tolist()
    when, shard, low, high, adds = (
        column.tolist() for column in (rows.step, rows.shard, rows.lo, rows.hi, rows.reduce)
    )
    into: dict[tuple[int, int, int], list[int]] = {}
    for row, node in enumerate(dst):
        if node >= ranks:
            into.setdefault((when[row], shard[row], node), []).append(row)
    feeders = {
        row: [
            other
            for other in into.get((when[row], shard[row], node), ())
            if low[other] < high[row] and low[row] < high[other] and adds[other] >= adds[row]
        ]
        for row, node in enumerate(src)
        if node >= ranks
    }
    levels = [0] * len(src)
    for _ in range(schedule.topology.switch_count):
        deeper = {row: 1 + max((levels[other] for other in others), default=-1) for row, others in feeders.items()}
        if all(levels[row] == level for row, level in deeper.items()):
            break
        for row, level in deeper.items():
            levels[row] = level
    pairs = np.stack([rows.step.astype(np.int64), np.array(levels, dtype=np.int64)])
    _, step = np.unique(pairs, axis=1, return_inverse=True)
    step = step.reshape(-1)
    order = np.argsort(step, kind="stable")
    steps = int(step.max(initial=-1)) + 1
    bounds = ColumnBounds(steps, len(routes), topology.compute_count, schedule.chunks_per_shard)
    columns = [step, *rows.columns[1:]]
    return ProcessSchedule(
        process_network(topology), schedule.collective, schedule.kind, steps, schedule.chunks_per_shard,
        bounds.pack([column[order] for column in columns]), routes, schedule.method, schedule.parameters,
        trees_per_root=schedule.trees_per_root, rank_count=topology.compute_count, switches=switches,
    )  # fmt: skip


def with_first_stored(messages: ChannelMessages, holds: NDArray[np.bool_]) -> ChannelMessages:
    """Return `messages` changed so that nodes without data store the first contribution instead of adding it.

    Switch processes have no data, and ranks that relay parts of a combine have no contribution to them. A message is
    split if only some of its chunks are first contributions. O(chunks * log(chunks)).

    holds: bool[nodes, chunks]: whether a node holds a contribution to a chunk initially
    """
    chosen = np.flatnonzero(messages.reduces == 1)
    if not len(chosen):
        return messages
    some = messages.select(chosen)
    row, chunk = some.cells()
    key = some.receiver[row].astype(np.int64) * (1 + int(chunk.max())) + chunk
    is_first = np.zeros(len(row), dtype=np.bool_)
    is_first[np.unique(key, return_index=True)[1]] = True
    is_first &= ~holds[some.receiver[row], chunk]
    begins = np.flatnonzero(np.diff(row, prepend=-1) | np.diff(is_first, prepend=~is_first[:1]))
    ends = np.append(begins[1:], len(row)) - 1
    place = np.concatenate([np.setdiff1d(np.arange(len(messages)), chosen), chosen[row[begins]]])
    cut = messages.select(place)
    kept = len(place) - len(begins)
    columns = {item.name: getattr(cut, item.name).copy() for item in fields(ChannelMessages)}
    columns["first"][kept:] = chunk[begins]
    columns["end"][kept:] = chunk[ends] + 1
    columns["reduces"][kept:] = ~is_first[begins]
    order = np.argsort(place, kind="stable")
    return ChannelMessages(**{name: column[order] for name, column in columns.items()})


SHAPE_OF_PROCESSES = CollectiveName.ALLREDUCE
"""Shape of every process's buffers: each process can hold the complete vector, like a rank in an in-place allreduce."""
