"""Synthesis at scale: what takes seconds on thousands of ranks, against hashing as many bytes as its rows would fill.

The reference is SHA-256 over the bytes of the schedule written out: whoever writes such a schedule, or reads it, spends
at least that, whatever the method. Small enough cases are written out in a test; here they need not be.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from typing import Any

from chorale.synth.bounds.lower_bound import lower_bound
from chorale.synth.collective import ALLGATHER, parse_collective
from chorale.synth.executor.serial import SerialExecutor
from chorale.synth.methods.catalog import synthesize
from chorale.synth.schedule.schedule import AnySchedule, ColumnBounds
from chorale.synth.topology.spec import parse_topology
from chorale.tuner.reports.tables import Stopwatch

_BLOCK = bytes(2**22)
_HASHED_BLOCKS = 16
"""Blocks that are really hashed; the time of all others follows from theirs."""


def verified_schedule_at_scale(case: str) -> tuple[dict[str, Any], Mapping[str, float]]:
    """Return facts of the schedule, and the seconds of network, schedule, verification and bound, and of hashing.

    `case` reads METHOD SPEC; the collective is allgather.
    """
    method, spec = case.split()
    synthesize(method, parse_topology("hypercube:3"), ALLGATHER, None, SerialExecutor())  # machine code is loaded
    stages = Stopwatch()
    with stages.stage("ours"):
        topology = parse_topology(spec)
        verified = synthesize(method, topology, ALLGATHER, None, SerialExecutor())
        bound = lower_bound(topology, ALLGATHER, verified.cost.time_per_byte)
    schedule = verified.schedule
    size = _row_bytes(schedule) * schedule.transfer_count
    with stages.stage("hashing"):
        digest = hashlib.sha256()
        for _ in range(_HASHED_BLOCKS):
            digest.update(_BLOCK)
    hashing = stages.seconds["hashing"] * size / (len(_BLOCK) * _HASHED_BLOCKS)
    facts = {
        "form": schedule.form,
        "steps": schedule.steps,
        "transfers": schedule.transfer_count,
        "chunks_per_shard": schedule.chunks_per_shard,
        "trees_per_root": schedule.trees_per_root,
        "time_per_byte": str(verified.cost.time_per_byte),
        "gap": str(verified.cost.time_per_byte / bound.value - 1),
        "id": schedule.id,
    }
    return facts, {"ours": stages.seconds["ours"], "reference": hashing}


_TABLE = (("allgather", "forest"), ("reduce_scatter", "forest"), ("allreduce", "forest-phases"))
"""Collectives of a table of `chorale watch`, and the method that plans each on many ranks."""


def table_after_a_loss(spec: str) -> tuple[dict[str, Any], Mapping[str, float]]:
    """Return facts of verified schedules of all collectives of a table, and the seconds of these and of a plain ring.

    Network, synthesis and verification count; the ring, for allgather alone, is made and verified in the same way.
    `processor` is what ours took of processors, whatever else ran.
    """
    synthesize("forest", parse_topology("ring:4"), ALLGATHER, None, SerialExecutor())  # machine code is loaded
    stages = Stopwatch()
    facts: dict[str, Any] = {}
    began_s = time.process_time()
    with stages.stage("ours"):
        topology = parse_topology(spec)
        verified = {
            name: synthesize(method, topology, parse_collective(name), None, SerialExecutor())
            for name, method in _TABLE
        }
    processor_s = time.process_time() - began_s
    for name, each in verified.items():
        bound = lower_bound(topology, parse_collective(name), each.cost.time_per_byte)
        gap = each.cost.time_per_byte / bound.value - 1
        facts[name] = {"time_per_byte": str(each.cost.time_per_byte), "gap": str(gap)}
    with stages.stage("reference"):
        topology = parse_topology(spec)
        synthesize("ring", topology, ALLGATHER, None, SerialExecutor())
    return facts, {**stages.seconds, "processor": processor_s}


def _row_bytes(schedule: AnySchedule) -> int:
    """Return the bytes of a row of the written-out schedule, routes counted as links."""
    topology = schedule.topology
    bounds = ColumnBounds(schedule.steps, len(topology.links), topology.compute_count, schedule.chunks_per_shard)
    return sum(dtype.itemsize for dtype in bounds.dtypes)
