"""oneCCL's own algorithms: their names, and how each of them gets its turn in one process.

oneCCL reads once, at its start, which algorithm serves which range of sizes. So each algorithm gets sizes of its own,
a few elements apart, and a range for each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from chorale.runners.api import RunRequest
from chorale.runners.element_types import ELEMENT_TYPES
from chorale.synth.collective import CollectiveName

_RANGE_BYTES = 16

ALGORITHMS: Mapping[str, tuple[str, ...]] = {
    CollectiveName.ALLREDUCE: ("ring", "double_tree", "recursive_doubling", "rabenseifner", "2d", "nreduce"),
    CollectiveName.ALLGATHER: ("ring", "naive", "flat", "multi_bcast"),
    CollectiveName.REDUCE_SCATTER: ("ring", "naive"),
    CollectiveName.BROADCAST: ("ring", "double_tree", "naive"),
    CollectiveName.REDUCE: ("ring", "tree", "double_tree", "rabenseifner"),
    CollectiveName.ALLTOALL: ("naive", "scatter"),
}
"""What oneCCL's build for CPUs has over libfabric, by collective."""

VARIABLES: Mapping[str, str] = {
    CollectiveName.ALLREDUCE: "CCL_ALLREDUCE",
    CollectiveName.ALLGATHER: "CCL_ALLGATHERV",
    CollectiveName.REDUCE_SCATTER: "CCL_REDUCE_SCATTER",
    CollectiveName.BROADCAST: "CCL_BCAST",
    CollectiveName.REDUCE: "CCL_REDUCE",
    CollectiveName.ALLTOALL: "CCL_ALLTOALL",
}
"""The variable that says which algorithm serves which sizes."""

_BY_SHARD = frozenset({CollectiveName.ALLGATHER, CollectiveName.REDUCE_SCATTER, CollectiveName.ALLTOALL})
"""Collectives whose size, as oneCCL sees it, is that of one rank's shard."""


@dataclass(frozen=True, slots=True)
class LibrarySizes:
    """elements:    (algorithm, position in the request's sizes) -> elements of the whole vector it is measured on
    environment: the variable that makes oneCCL choose the algorithms by these sizes
    """

    elements: Mapping[tuple[str, int], int]
    environment: Mapping[str, str]


def library_sizes(request: RunRequest, collective: CollectiveName) -> LibrarySizes:
    """Return at which sizes, each at least the one asked for, the algorithms of `request` are measured."""
    element_bytes = ELEMENT_TYPES[request.dtype].dtype.itemsize
    ranks = request.topology.compute_count if collective in _BY_SHARD else 1
    elements: dict[tuple[str, int], int] = {}
    taken: dict[int, str] = {}  # number of the range -> algorithm
    for position, size_bytes in enumerate(request.sizes_bytes):
        for algorithm in request.library:
            number = -(-size_bytes // (ranks * _RANGE_BYTES))
            while number in taken:
                number += 1
            taken[number] = algorithm
            elements[algorithm, position] = number * _RANGE_BYTES // element_bytes * ranks
    ranges = (f"{name}:{n * _RANGE_BYTES}-{n * _RANGE_BYTES + _RANGE_BYTES - 1}" for n, name in sorted(taken.items()))
    return LibrarySizes(elements, {VARIABLES[collective]: ";".join(ranges)} if taken else {})
