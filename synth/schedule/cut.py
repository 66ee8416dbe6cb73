"""A schedule in smaller pieces: trees that stream hand a piece on while the next one arrives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from chorale.synth.errors import InvalidInput
from chorale.synth.schedule.schedule import Schedule

MAX_PIPELINE_PARTS = 1024


def pipeline_split(schedule: Schedule, parts: int) -> Schedule:
    """Return `schedule` with every transfer as `parts` transfers of equal length, one after the other.

    Loads and steps stay the same; a tree whose edges carry one transfer each becomes a pipeline of `parts` pieces.
    Raises InvalidInput for fewer than one part and more than `MOST_PARTS`. O(rows of the result).
    """
    if not 1 <= parts <= MAX_PIPELINE_PARTS:
        raise InvalidInput(
            f"a schedule is cut into 1 to {MAX_PIPELINE_PARTS} parts", parts, "choose a number in this range"
        )
    rows = schedule.transfers
    length = rows.hi.astype(np.int64) - rows.lo
    step, route, shard, lo, reduce = (
        np.repeat(column.astype(np.int64), parts)
        for column in (rows.step, rows.route, rows.shard, rows.lo, rows.reduce)
    )
    lengths = np.repeat(length, parts)
    first = lo * parts + lengths * np.tile(np.arange(parts), len(rows))
    deeper = replace(
        schedule,
        chunks_per_shard=schedule.chunks_per_shard * parts,
        parameters={**schedule.parameters, "depth": parts},
    )
    return replace(deeper, transfers=deeper.bounds.pack((step, route, shard, first, first + lengths, reduce)))
