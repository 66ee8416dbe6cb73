"""The slow and obvious replay: every cell holds the set of ranks whose contribution is in it, as one integer.

The reference for both replays of `chorale.synth.verify`.
"""

import numpy as np

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
