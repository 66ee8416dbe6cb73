"""What the local runner needs of a request and of this machine, checked before anything is started."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np

from chorale.runners.admission import RequestFault
from chorale.runners.api import FailureKind, RunRequest
from chorale.runners.element_types import ELEMENT_TYPES
from chorale.runners.memory_need import memory_shortage

MAX_NODES = 512
MAX_LINKS = 4096
MAX_NODE_LINKS = 900  # `select` watches descriptors below 1024

_WORK_BYTES = 40  # per element, to make and to check data


def precondition_faults(request: RunRequest) -> Iterator[RequestFault]:
    """Yield why `request` is too large for this runner or for this machine's memory."""
    if (reason := _beyond_limits(request) or memory_shortage(request, _WORK_BYTES)) is not None:
        yield FailureKind.UNAVAILABLE, reason


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
