"""What the expansions of schedules share: which they take, link ids in the result, rows that become several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from chorale.synth.collective import ALLGATHER
from chorale.synth.errors import InvalidInput
from chorale.synth.schedule.routes import Routes
from chorale.synth.schedule.schedule import Schedule
from chorale.synth.schedule.transfers import ColumnBounds
from chorale.synth.topology.topology import Topology

Column: TypeAlias = NDArray[np.integer]

MAX_TRANSFERS = 2**27


def require_expandable(schedule: Schedule) -> None:
    """Refuse what is not a stepped allgather over single links."""
    if (
        schedule.collective != ALLGATHER
        or schedule.kind != "stepped"
        or not schedule.routes.is_direct(len(schedule.topology.links))
    ):
        rule = "a schedule must be a stepped allgather over direct links to be expanded"
        raise InvalidInput(rule, f"{schedule.kind} {schedule.collective} by {schedule.method}", "expand an allgather")


def require_size(transfers: int, topology: Topology) -> None:
    """Refuse a schedule that would be too large, before it is made."""
    if transfers > MAX_TRANSFERS:
        rule = f"an expanded schedule must have at most {MAX_TRANSFERS} transfers"
        raise InvalidInput(rule, f"{transfers} on {topology.spec}", "choose fewer nodes, or bfb, which makes fewer")


def allgather_from_columns(
    base: Schedule, topology: Topology, steps: int, chunks: int, columns: Sequence[Column]
) -> Schedule:
    """Return the allgather on `topology` with `columns` step, route, shard, lo and hi; provenance is that of `base`."""
    bounds = ColumnBounds(steps, len(topology.links), topology.compute_count, chunks)
    transfers = bounds.pack((*columns, np.zeros(len(columns[0]), dtype=np.uint8)))
    routes = Routes.direct(len(topology.links))
    return Schedule(topology, ALLGATHER, "stepped", steps, chunks, transfers, routes, base.method, base.parameters)


def repeat_rows(counts: Column) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return, for rows of which row r shall become `counts[r]` rows: the old row of each new one, and its number there.

    counts [2, 0, 3] give [0, 0, 2, 2, 2] and [0, 1, 0, 1, 2]. O(new rows).
    """
    owner = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    start = (np.cumsum(counts) - counts).astype(np.int32)
    return owner, np.arange(len(owner), dtype=np.int32) - start[owner]
