"""How many instances of a schedule cut vectors of given sizes into equal chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from synth.collective import CollectiveName
from synth.errors import InvalidInput
from synth.lowering.options import LoweringOptions
from synth.lowering.vector import vector_of
from synth.schedule.schedule import Schedule


def chunks_of_vector(schedule: Schedule, instances: int) -> int:
    """Return N, the chunks of the vector of one rank in a program of so many instances."""
    ranks = schedule.topology.compute_count
    return vector_of(schedule, instances).chunks // (
        ranks if schedule.collective.name == CollectiveName.ALLTOALL else 1
    )


def dividing(
    schedule: Schedule, options: LoweringOptions, sizes_bytes: Sequence[int], granule_bytes: int
) -> LoweringOptions:
    """Return `options` with the most instances, up to those asked for, with which all `sizes_bytes` can be cut into
    equal chunks of whole granules (elements, or what a runtime aligns to), and with the range of these sizes.

    Runtimes take their own algorithm, without notice, for sizes that N does not divide. InvalidInput, with the nearest
    sizes that can be cut, if one instance cannot either.
    """
    single = chunks_of_vector(schedule, 1)
    for instances in range(options.instances, 0, -1):
        if all(size % (single * instances * granule_bytes) == 0 for size in sizes_bytes):
            return replace(options, instances=instances, min_bytes=min(sizes_bytes), max_bytes=max(sizes_bytes))
    step = single * granule_bytes
    wrong = next(size for size in sizes_bytes if size % step)
    near = " or ".join(str(size) for size in (wrong // step * step, -(-wrong // step) * step) if size)
    rule = f"sizes must be multiples of {step} bytes: {single} chunks of whole {granule_bytes} bytes"
    raise InvalidInput(rule, wrong, f"use {near} bytes, or a schedule with other chunks")
