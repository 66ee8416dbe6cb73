"""What the local runner needs of a request and of this machine, checked before anything is started."""

from __future__ import annotations

import sys

import numpy as np
import psutil

from runners.admission import refusal
from runners.api import FailureKind, RunRequest
from runners.element_types import ELEMENT_TYPES

MAX_NODES = 512
MAX_LINKS = 4096
MAX_NODE_LINKS = 900  # `select` watches descriptors below 1024

_WORK_BYTES = 40  # per element, to make and to check data


def unmet_need(request: RunRequest) -> tuple[FailureKind, str] | None:
    """Return why `request` is refused, too large for this runner or for this machine's memory; None if it can run."""
    if (reason := refusal(request)) is not None:
        return FailureKind.REJECTED, reason
    if (reason := _beyond_limits(request) or _beyond_memory(request)) is not None:
        return FailureKind.UNAVAILABLE, reason
    return None


def _beyond_limits(request: RunRequest) -> str | None:
    topology = request.topology
    ends = np.concatenate([topology.links.src, topology.links.dst])
    if sys.platform == "win32":
        return "the local runner needs processes that fork: use Linux or macOS"
    if topology.node_count > MAX_NODES or len(topology.links) > MAX_LINKS:
        found = f"{topology.node_count} and {len(topology.links)}"
        return f"the local runner takes at most {MAX_NODES} nodes and {MAX_LINKS} links, not {found}"
    if topology.compute_count > (most := ELEMENT_TYPES[request.dtype].max_ranks):
        return f"data of type {request.dtype} can be checked on at most {most} ranks, not {topology.compute_count}"
    if np.bincount(ends).max(initial=0) > MAX_NODE_LINKS:
        return f"the local runner takes at most {MAX_NODE_LINKS} links at a node"
    return None


def _beyond_memory(request: RunRequest) -> str | None:
    largest = max(request.sizes_bytes)
    scratch = max(
        rank.scratch_chunks / program.chunks for program in request.programs.values() for rank in program.ranks
    )
    elements = largest / ELEMENT_TYPES[request.dtype].dtype.itemsize
    ranks = request.topology.compute_count
    needed = ranks * (largest * (3 + scratch) + elements * _WORK_BYTES)
    free = psutil.virtual_memory().available
    if needed <= free:
        return None
    return f"{largest} bytes on {ranks} ranks need about {needed / 1e9:.1f} GB of memory, {free / 1e9:.1f} GB are free"
