"""Whether a request fits into the memory of this machine, when all its ranks run here."""

from __future__ import annotations

import psutil

from chorale.runners.api import RunRequest
from chorale.runners.element_types import ELEMENT_TYPES


def memory_shortage(request: RunRequest, work_bytes: int) -> str | None:
    """Return in one line why `request` does not fit, None if it does.

    work_bytes: what a runner needs per element of the vector besides input, output, scratch and messages
    """
    largest = max(request.sizes_bytes)
    scratch = max(
        rank.scratch_chunks / program.chunks for program in request.programs.values() for rank in program.ranks
    )
    elements = largest / ELEMENT_TYPES[request.dtype].dtype.itemsize
    ranks = request.topology.compute_count
    needed = ranks * (largest * (3 + scratch) + elements * work_bytes)
    free = psutil.virtual_memory().available
    if needed <= free:
        return None
    return f"{largest} bytes on {ranks} ranks need about {needed / 1e9:.1f} GB of memory, {free / 1e9:.1f} GB are free"
