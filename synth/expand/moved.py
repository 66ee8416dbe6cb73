"""A schedule under other names of the nodes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from synth.expand.columns import allgather_of, link_ids, require_expandable
from synth.schedule.schedule import Schedule
from synth.topology.topology import Topology


def moved_schedule(schedule: Schedule, new_rank: NDArray[np.integer], topology: Topology) -> Schedule:
    """Return `schedule` on `topology`, the same network with rank r called `new_rank[r]`. O(rows + L log L)."""
    require_expandable(schedule)
    links, rows = schedule.topology.links, schedule.transfers
    ids = link_ids(new_rank[links.src], new_rank[links.dst], links.bandwidth_class, links.latency_class)
    columns = (rows.step, ids[rows.route], new_rank[rows.shard], rows.lo, rows.hi)
    return allgather_of(schedule, topology, schedule.steps, schedule.chunks_per_shard, columns)
