"""OneCclRunner: times programs over oneCCL's point-to-point calls, alternately with oneCCL's own algorithms.

oneCCL reads the algorithm for each range of sizes once, when it starts. Its algorithms are therefore measured at
slightly different sizes, a few elements apart, so that each algorithm has its own range.
"""

import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from chorale.runners.api.base import FailureKind, Measurement, RunRequest
from chorale.runners.api.elements import ELEMENT_TYPES
from chorale.runners.api.validation import RequestFault, memory_shortage, validate_request
from chorale.runners.engine.library import engine_library
from chorale.runners.execution.rounds import Environment, LiveRunner, MeasurementRounds, RunStopped
from chorale.runners.oneccl.install import DEFAULT_VERSION, PACKAGES, Version, build_library, find_parts
from chorale.runners.oneccl.rank import ENGINE, LIBRARY
from chorale.runners.oneccl.ranks import OneCclRanks, place_ranks
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
"""Algorithms of oneCCL's CPU build over libfabric, by collective."""

VARIABLES: Mapping[str, str] = {
    CollectiveName.ALLREDUCE: "CCL_ALLREDUCE",
    CollectiveName.ALLGATHER: "CCL_ALLGATHERV",
    CollectiveName.REDUCE_SCATTER: "CCL_REDUCE_SCATTER",
    CollectiveName.BROADCAST: "CCL_BCAST",
    CollectiveName.REDUCE: "CCL_REDUCE",
    CollectiveName.ALLTOALL: "CCL_ALLTOALL",
}
"""For each collective, the variable that assigns algorithms to sizes."""

_BY_SHARD = frozenset({CollectiveName.ALLGATHER, CollectiveName.REDUCE_SCATTER, CollectiveName.ALLTOALL})
"""Collectives whose size is one rank's shard for oneCCL."""


@dataclass(frozen=True, slots=True)
class LibrarySizes:
    """Sizes at which oneCCL's algorithms are measured.

    elements:    (algorithm, position in the request's sizes) -> number of elements in the whole vector
    environment: environment variable that makes oneCCL use each algorithm at its size
    """

    elements: Mapping[tuple[str, int], int]
    environment: Mapping[str, str]


def library_sizes(request: RunRequest, collective: CollectiveName) -> LibrarySizes:
    """Choose the sizes at which `request`'s algorithms are measured; none is below the requested size."""
    element_bytes = ELEMENT_TYPES[request.dtype].dtype.itemsize
    ranks = request.topology.compute_count if collective in _BY_SHARD else 1
    elements: dict[tuple[str, int], int] = {}
    used: dict[int, str] = {}  # number of the range -> algorithm
    for position, size_bytes in enumerate(request.sizes_bytes):
        for algorithm in request.library:
            number = -(-size_bytes // (ranks * _RANGE_BYTES))
            while number in used:
                number += 1
            used[number] = algorithm
            elements[algorithm, position] = number * _RANGE_BYTES // element_bytes * ranks
    ranges = (f"{name}:{n * _RANGE_BYTES}-{n * _RANGE_BYTES + _RANGE_BYTES - 1}" for n, name in sorted(used.items()))
    return LibrarySizes(elements, {VARIABLES[collective]: ";".join(ranges)} if used else {})


MAX_RANKS = 256
_WORK_BYTES = 40  # per element, to create and check data

START_LIMIT_S, START_PER_RANK_S = 30.0, 0.5
"""Time that the ranks may need to connect, before the request's time limit starts."""


RANK = (sys.executable, "-P", "-m", "chorale.runners.oneccl.rank")


class OneCclRunner(LiveRunner[OneCclRanks]):
    """Implements `Runner` with one process per rank; each runs all programs and sizes of a request.

    fabric: name of the fabric; needed only if several have the topology
    where:  `fabric`, `cluster` or `loopback`; None for the topology's fabric if it is up, else a cluster. Loopback has
            no network: times depend on this machine's memory and scheduler
    version: oneCCL version

    A request's time limit starts when the ranks are connected. The one-time build of native code does not count.
    """

    name = "oneccl"

    def __init__(
        self,
        fabric: str | None = None,
        where: str | None = None,
        *,
        version: Version = DEFAULT_VERSION,
    ) -> None:
        super().__init__()
        self._fabric, self._where = fabric, where
        self._version = version

    def library(self, collective: str) -> tuple[str, ...]:
        return ALGORITHMS.get(collective, ())

    def _fault(self, request: RunRequest) -> RequestFault | None:
        return validate_request(request, self.library, _faults)

    def _measure(self, request: RunRequest, environment: Environment) -> Measurement:
        native = {LIBRARY: build_library(self._version), ENGINE: engine_library()}
        files = {name: path.read_bytes() for name, path in native.items()}
        placement = place_ranks(request.topology, self._where, self._fabric)
        is_here = not placement.address
        if is_here and (reason := memory_shortage(request, _WORK_BYTES)) is not None:
            raise RunStopped(FailureKind.UNAVAILABLE, reason)
        self._identify({"clock": "monotonic", **PACKAGES[self._version], **placement.facts}, environment)
        programs = list(request.without_plans.values())
        sizes = library_sizes(request, programs[0].collective.name)
        start_limit = time.monotonic() + START_LIMIT_S + START_PER_RANK_S * len(placement.hosts)
        files |= find_parts(self._version).runtime_files()
        ranks = self._group_for(
            object(), lambda: OneCclRanks(placement, RANK, files, sizes.environment, start_limit)
        )  # for this request only
        ranks.load(programs, request.library, start_limit)
        rounds = MeasurementRounds(ranks, request, time.monotonic() + request.timeout_s, sizes.elements)
        results = rounds.measure()
        if not is_here:
            environment["clock_error_us"] = ranks.clock_error_s * 1e6
        self.close()
        return Measurement(self.name, results, environment, rounds.traces)


def _faults(request: RunRequest) -> Iterator[RequestFault]:
    most = min(MAX_RANKS, ELEMENT_TYPES[request.dtype].max_ranks)
    if (ranks := request.topology.compute_count) > most:
        yield FailureKind.UNAVAILABLE, f"the oneccl runner takes at most {most} ranks of {request.dtype}, not {ranks}"
