"""Replays of schedules on sets, chunk by chunk, with and without switches that add: slow and obvious."""

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from chorale.synth.collective import CollectiveName
from chorale.synth.schedule.schedule import Schedule
from chorale.synth.verify.replay import shard_conditions
from chorale.synth.verify.verified import ScheduleViolation


def violations(schedule: Schedule) -> list[ScheduleViolation]:
    """Replay step by step and return every kind of fault (at most 20).

    A set is a Python integer with one bit per contributing rank. A copied shard is the set of its owner alone.
    """
    terms = shard_conditions(schedule)
    ranks, chunks = schedule.topology.compute_count, schedule.chunks_per_shard
    everyone = (1 << ranks) - 1
    held: list[dict[tuple[int, int], int]] = [{} for _ in range(ranks)]
    for shard, start in enumerate(terms.starts):
        for chunk in range(chunks):
            for rank in range(ranks) if start < 0 else [int(start)]:
                held[rank][shard, chunk] = 1 << rank if start < 0 else everyone
    found: list[ScheduleViolation] = []
    for step in range(schedule.steps):
        _replay_step(schedule, step, held, found)
    found += [
        ScheduleViolation("not-delivered", f"chunk {chunk} of shard {shard} is missing at rank {rank}")
        for shard, end in enumerate(terms.ends)
        for chunk in range(chunks)
        for rank in (range(ranks) if end < 0 else [int(end)])
        if held[rank].get((shard, chunk), 0) != everyone
    ]
    return found[:20]


def _replay_step(
    schedule: Schedule, step: int, held: list[dict[tuple[int, int], int]], found: list[ScheduleViolation]
) -> None:
    """Apply the rows of one step: all of them read what was there before the step."""
    transfers, src, dst = schedule.transfers, schedule.src, schedule.dst
    arriving: list[tuple[int, tuple[int, int], int, bool]] = []
    for row in np.flatnonzero(transfers.step == step):
        for chunk in range(int(transfers.lo[row]), int(transfers.hi[row])):
            cell = (int(transfers.shard[row]), chunk)
            contribution = held[src[row]].get(cell)
            if contribution is None:
                found.append(ScheduleViolation("sent-before-received", f"row {row} sends a chunk before it is there"))
            else:
                arriving.append((int(dst[row]), cell, contribution, bool(transfers.reduce[row])))
    for rank, cell, contribution, reduce in arriving:
        present = held[rank].get(cell, 0)
        if reduce and not present:
            found.append(
                ScheduleViolation("reduced-into-nothing", f"rank {rank} adds to shard {cell[0]} where it holds nothing")
            )
        if reduce and present & contribution:
            found.append(
                ScheduleViolation("reduced-twice", f"rank {rank} adds a contribution to shard {cell[0]} twice")
            )
        held[rank][cell] = present | contribution if reduce else contribution


_COPIES = (CollectiveName.ALLGATHER, CollectiveName.BROADCAST)
_SUMS = (CollectiveName.REDUCE_SCATTER, CollectiveName.REDUCE)


def is_right(schedule: Schedule) -> bool:
    """Whether every chunk of `schedule` ends where and as it must, switches sending at once and storing nothing."""
    rows = schedule.transfers
    of_chunk = defaultdict(list)
    for row in range(len(rows)):
        for chunk in range(int(rows.lo[row]), int(rows.hi[row])):
            ends = int(schedule.src[row]), int(schedule.dst[row])
            of_chunk[int(rows.shard[row]), chunk].append((int(rows.step[row]), *ends, bool(rows.reduce[row])))
    shards, chunks = range(schedule.shard_count), range(schedule.chunks_per_shard)
    return all(_chunk_is_right(schedule, shard, of_chunk[shard, chunk]) for shard in shards for chunk in chunks)


def _chunk_is_right(schedule: Schedule, shard: int, messages: list[tuple[int, int, int, bool]]) -> bool:
    ranks, name = schedule.topology.compute_count, schedule.collective.name
    root = schedule.collective.root or 0
    everyone = frozenset(range(ranks))
    if _sums_come_in_several_steps(messages, ranks):
        return False
    sums = {rank: frozenset({rank}) for rank in range(ranks)} if schedule.collective.reduces else {}
    owner = root if name == CollectiveName.BROADCAST else shard
    results = {owner} if name in _COPIES else set()
    for step in range(schedule.steps):
        if not _step(schedule, [m for m in messages if m[0] == step], sums, results, everyone):
            return False
    if name in _SUMS:
        return sums.get(root if name == CollectiveName.REDUCE else shard) == everyone and len(sums) == 1
    return results >= set(range(ranks)) and len(sums) <= 1


def _sums_come_in_several_steps(messages: list[tuple[int, int, int, bool]], ranks: int) -> bool:
    """Whether a switch gets parts of the sum of this chunk in more than one step: it makes one sum of a chunk."""
    steps = defaultdict(set)
    for step, _, dst, adds in messages:
        if adds and dst >= ranks:
            steps[dst].add(step)
    return any(len(steps_of_switch) > 1 for steps_of_switch in steps.values())


@dataclass
class _Step:
    """The messages (step, src, dst, whether it adds) of one step, and what switches have got of them so far."""

    schedule: Schedule
    messages: list[tuple[int, int, int, bool]]
    inputs: dict[int, list[frozenset[int]]] = field(default_factory=lambda: defaultdict(list))
    results: set[int] = field(default_factory=set)

    def is_switch(self, node: int) -> bool:
        return node >= self.schedule.topology.compute_count

    def into(self, node: int, adds: bool) -> int:
        return sum(message[2] == node and message[3] == adds for message in self.messages)

    def out_of(self, node: int, adds: bool) -> int:
        return sum(message[1] == node and message[3] == adds for message in self.messages)

    def sum_at(self, switch: int) -> frozenset[int] | None:
        """Return the sum that a switch makes, once all its inputs are there."""
        terms = self.inputs[switch]
        return frozenset().union(*terms) if len(terms) == self.into(switch, True) > 0 else None

    def has_result(self, switch: int, everyone: frozenset[int]) -> bool:
        if self.into(switch, False):
            return switch in self.results
        return self.out_of(switch, True) == 0 and self.sum_at(switch) == everyone

    def switch_is_right(self, switch: int) -> bool:
        """Whether a switch sends what it gets, and does what it can do only."""
        ability = self.schedule.topology.abilities[switch]
        sums_in, results_in = self.into(switch, True), self.into(switch, False)
        sums_out, results_out = self.out_of(switch, True), self.out_of(switch, False)
        is_turned = sums_in > 0 and sums_out == 0
        return (
            sums_out <= 1
            and results_in + is_turned <= 1
            and (results_out > 0) == (results_in + is_turned == 1)
            and (sums_in <= 1 or ability.reduce)
            and (results_out <= 1 or ability.multicast)
        )


Sums = dict[int, frozenset[int]]


def _step(schedule: Schedule, messages: list, sums: Sums, results: set[int], everyone: frozenset[int]) -> bool:
    """Do what one step does; False where a message cannot be sent or must not be."""
    adds, name = {message[3] for message in messages}, schedule.collective.name
    if (True in adds and not schedule.collective.reduces) or (False in adds and name in _SUMS):
        return False
    step = _Step(schedule, messages)
    acting = {node for message in messages for node in message[1:3] if step.is_switch(node)}
    if not all(map(step.switch_is_right, acting)):
        return False
    at_start = results | {node for node, terms in sums.items() if terms == everyone}
    new_sums: list[tuple[int, frozenset[int]]] = []
    new_results: set[int] = set()
    waiting = list(messages)
    while waiting:
        ready = [(message, _payload(step, message, sums, at_start, everyone)) for message in waiting]
        ready = [(message, payload) for message, payload in ready if payload is not None]
        if not ready:
            return False
        message, payload = ready[0]
        waiting.remove(message)
        _, src, dst, adds_up = message
        if adds_up and not step.is_switch(src):
            del sums[src]
        if step.is_switch(dst):
            step.inputs[dst].append(payload) if adds_up else step.results.add(dst)
        elif adds_up:
            new_sums.append((dst, payload))
        else:
            new_results.add(dst)
    for rank, terms in new_sums:
        if rank not in sums or sums[rank] & terms:
            return False
        sums[rank] |= terms
    results |= new_results | at_start
    return True


def _payload(
    step: _Step, message: tuple, sums: Sums, at_start: set[int], everyone: frozenset[int]
) -> frozenset[int] | None:
    """Return what `message` carries, None where its sender has not got it."""
    _, src, _, adds = message
    if adds:
        return step.sum_at(src) if step.is_switch(src) else sums.get(src)
    has_it = step.has_result(src, everyone) if step.is_switch(src) else src in at_start
    return everyone if has_it else None
