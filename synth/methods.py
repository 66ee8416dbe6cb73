"""From a method's name to a verified schedule of any collective it can do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from synth.bfb.bfb import bfb_allgather
from synth.collective import Collective, CollectiveName
from synth.errors import InvalidInput
from synth.executor.port import Executor, Progress
from synth.expand.expand import expand_allgather
from synth.rings.ring import ring_allgather
from synth.schedule.compose import concatenate, reverse_allgather
from synth.schedule.schedule import Schedule
from synth.topology.topology import Topology
from synth.topology.transpose import transpose_with_links
from synth.verify.verified import VerifiedSchedule
from synth.verify.verify import verify

Gather: TypeAlias = Callable[[Topology, int | None, Executor, Progress | None, int | None], Schedule]
"""Of the topology, chunks per shard, executor, progress and bytes of the vector."""


def _bfb(
    topology: Topology, chunks: int | None, executor: Executor, progress: Progress | None, size_bytes: int | None
) -> Schedule:
    return bfb_allgather(topology, executor, chunks, progress, size_bytes)


def _ring(
    topology: Topology, chunks: int | None, _executor: Executor, _progress: Progress | None, _size_bytes: int | None
) -> Schedule:
    return ring_allgather(topology, both_ways=False, chunks=chunks)


def _biring(
    topology: Topology, chunks: int | None, _executor: Executor, _progress: Progress | None, _size_bytes: int | None
) -> Schedule:
    return ring_allgather(topology, both_ways=True, chunks=chunks)


def _expand(
    topology: Topology, chunks: int | None, executor: Executor, progress: Progress | None, _size_bytes: int | None
) -> Schedule:
    return expand_allgather(topology, executor, chunks, progress)


GATHER_METHODS: Mapping[str, Gather] = {"bfb": _bfb, "ring": _ring, "biring": _biring, "expand": _expand}
"""Methods that make an allgather; their reduce_scatter and allreduce follow by reversal and concatenation."""

METHODS = tuple(GATHER_METHODS)


def synthesize_unverified(
    method: str,
    topology: Topology,
    collective: Collective,
    chunks: int | None,
    executor: Executor,
    progress: Progress | None = None,
    size_bytes: int | None = None,
) -> Schedule:
    """Return the schedule that `method` makes, not yet verified (for timing the two apart).

    chunks: chunks per shard, None for the smallest number that reaches the method's best time.
    size_bytes: bytes of the whole vector, which bfb weighs link latencies against; other methods do not depend on it.
    Raises InvalidInput for an unknown method or a collective that the method cannot do.
    """
    if method not in GATHER_METHODS:
        raise InvalidInput("a method must be one that is known", method, f"choose from {', '.join(METHODS)}")
    gather = GATHER_METHODS[method]
    if collective.name == CollectiveName.ALLGATHER:
        return gather(topology, chunks, executor, progress, size_bytes)
    if collective.name not in (CollectiveName.REDUCE_SCATTER, CollectiveName.ALLREDUCE):
        known = "allgather, reduce_scatter or allreduce"
        raise InvalidInput(f"{method} makes {known}", collective.name.value, f"choose {known}")
    transposed, original_link = transpose_with_links(topology)
    backwards = gather(transposed, chunks, executor, progress, size_bytes)
    scatter = reverse_allgather(backwards, topology, original_link)
    if collective.name == CollectiveName.REDUCE_SCATTER:
        return scatter
    # A network that equals its transpose has the same allgather; no need to make it twice.
    if transposed.id == topology.id:
        return concatenate(scatter, _on(backwards, topology))
    return concatenate(scatter, gather(topology, chunks, executor, progress, size_bytes))


def synthesize(
    method: str,
    topology: Topology,
    collective: Collective,
    chunks: int | None,
    executor: Executor,
    progress: Progress | None = None,
    size_bytes: int | None = None,
) -> VerifiedSchedule:
    """Return the verified schedule that `method` makes of `collective` on `topology`.

    With `size_bytes`, its cost holds the exact time at that size.
    """
    schedule = synthesize_unverified(method, topology, collective, chunks, executor, progress, size_bytes)
    return verify(schedule, size_bytes)


def _on(schedule: Schedule, topology: Topology) -> Schedule:
    """Return `schedule` with `topology` in place of an equal one of another spec."""
    if schedule.topology is topology:
        return schedule
    return Schedule(
        topology, schedule.collective, schedule.kind, schedule.steps, schedule.chunks_per_shard, schedule.transfers,
        schedule.routes, schedule.method, schedule.parameters, schedule.certificate, schedule.trees_per_root,
    )  # fmt: skip
