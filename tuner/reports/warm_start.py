"""Starting a synthesis from an older schedule, and what of it was kept."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from chorale.synth.bounds.certificate import check_certificate
from chorale.synth.bounds.lower_bound import lower_bound
from chorale.synth.schedule.schedule import Schedule
from chorale.synth.verify.verified import VerifiedSchedule
from chorale.synth.verify.verify import verify
from chorale.tuner.schedule_files import load_schedule


def load_warm_start(path: str) -> VerifiedSchedule:
    """Return the schedule in the file at `path`, verified: its columns are about to be followed."""
    return verify(load_schedule(path))


def warm_start_document(old: VerifiedSchedule, new: VerifiedSchedule) -> dict[str, Any]:
    """Return what the old schedule took and could have taken at best, and how much of it the new one keeps."""
    schedule = old.schedule
    bound = lower_bound(schedule.topology, schedule.collective, old.cost.time_per_byte)
    check_certificate(schedule.topology, schedule.collective, bound.to_json(schedule.topology))
    kept, survivors = _kept(schedule.expand(), new.schedule.expand())
    return {
        "schedule": schedule.id,
        "topology": schedule.topology.spec,
        "achieved": str(old.cost.time_per_byte),
        "lower_bound": str(bound.value),
        "gap": str(old.cost.time_per_byte / bound.value - 1),
        "transfers_kept": kept,
        "transfers_possible": survivors,
    }


def _kept(old: Schedule, new: Schedule) -> tuple[int, int]:
    """Return (old transfers that the new schedule has too, old transfers between ranks that are still there).

    Equal are transfers of the same part of the same shard between the same ranks, by node id.
    """
    names = new.topology.node_ids[: new.topology.compute_count]
    place = {name: rank for rank, name in enumerate(names)}
    old_names = old.topology.node_ids[: old.topology.compute_count]
    now = np.array([place.get(name, -1) for name in old_names], dtype=np.int64)
    before, after = _keys(old, now, len(names)), _keys(new, np.arange(len(names)), len(names))
    return int(np.isin(before, after).sum()), len(before)


def _keys(schedule: Schedule, rank: NDArray[np.int64], ranks: int) -> NDArray[np.complex128]:
    """Return one number per transfer: who sends what to whom, and as imaginary part the middle of the chunks."""
    rows = schedule.transfers
    src, dst, shard = rank[schedule.src], rank[schedule.dst], rank[rows.shard.astype(np.int64)]
    alive = (src >= 0) & (dst >= 0) & (shard >= 0)
    who = ((src * ranks + dst) * ranks + shard) * 2 + rows.reduce
    part = (rows.lo.astype(np.int64) + rows.hi) / (2 * schedule.chunks_per_shard)
    return (who + 1j * part)[alive]
