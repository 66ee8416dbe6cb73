"""Into how many equal chunks vectors of given sizes are cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import gcd

from chorale.synth.collective import CollectiveName
from chorale.synth.errors import InvalidInput
from chorale.synth.lowering.chunking import min_chunks
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.lowering.vector import vector_layout_of
from chorale.synth.schedule.schedule import Schedule


def chunks_of_vector(schedule: Schedule, instances: int) -> int:
    """Return N, the chunks of the vector of one rank in a program of so many instances."""
    return _shards_of_vector(schedule) * instances * schedule.chunks_per_shard


def options_for_sizes(
    schedule: Schedule, options: LoweringOptions, sizes_bytes: Sequence[int], granule_bytes: int
) -> LoweringOptions:
    """Return `options` with instances and chunks such that all `sizes_bytes` can be cut into equal chunks of whole
    granules (elements, or what a runtime aligns to), and with the range of these sizes.

    There are as many instances as can be, up to those asked for, and then as many chunks per shard, up to those asked
    for (without a wish, those of the schedule): fewer where chunks of the schedule can be joined, see
    `chorale.synth.lowering.chunking`. Runtimes take their own algorithm, without notice, for sizes that N does not
    divide. InvalidInput, with the nearest sizes that can be cut, if the fewest chunks of one instance cannot either.
    """
    least = min_chunks(schedule)
    step = _shards_of_vector(schedule) * least * granule_bytes
    common = gcd(*sizes_bytes)
    if common % step:
        raise _no_fit(step // granule_bytes, granule_bytes, sizes_bytes)
    instances = _largest_divisor(common // step, options.instances)
    most = (options.chunks or schedule.chunks_per_shard) // least
    chunks = least * _largest_divisor(common // (step * instances), most)
    low, high = min(sizes_bytes), max(sizes_bytes)
    return replace(options, instances=instances, chunks=chunks, min_bytes=low, max_bytes=high)


def _shards_of_vector(schedule: Schedule) -> int:
    ranks = schedule.topology.compute_count
    return vector_layout_of(schedule, 1).shards // (ranks if schedule.collective.name == CollectiveName.ALLTOALL else 1)


def _largest_divisor(number: int, most: int) -> int:
    """Return the largest divisor of `number` that is at most `most`. O(most)."""
    return next(divisor for divisor in range(most, 0, -1) if number % divisor == 0)


def _no_fit(chunks: int, granule_bytes: int, sizes_bytes: Sequence[int]) -> InvalidInput:
    step = chunks * granule_bytes
    wrong = next(size for size in sizes_bytes if size % step)
    near = " or ".join(str(size) for size in (wrong // step * step, -(-wrong // step) * step) if size)
    rule = f"sizes must be multiples of {step} bytes: {chunks} chunks of whole {granule_bytes} bytes"
    return InvalidInput(rule, wrong, f"use {near} bytes, or a schedule with other chunks")
