"""OneCclRunner: times programs over oneCCL's point-to-point calls, alternately with oneCCL's own algorithms.

oneCCL reads only at its start which algorithm to use for which range of sizes. Its algorithms are therefore measured at
slightly different sizes, a few elements apart, so that each algorithm has its own range.
"""

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from chorale.runners.api.base import FailureKind, Measurement, RunRequest
from chorale.runners.api.elements import ELEMENT_TYPES
from chorale.runners.api.validation import RequestFault, memory_shortage
from chorale.runners.engine.library import engine_library
from chorale.runners.execution.rounds import Environment, LiveRunner, MeasurementRounds, RunStopped
from chorale.runners.execution.started_ranks import StartedRanks
from chorale.runners.fabric.fabric import find_fabric
from chorale.runners.measurement.machine import Facts
from chorale.runners.oneccl.install import PACKAGES, build_library, runtime_files
from chorale.runners.oneccl.rank import ENGINE, LIBRARY
from chorale.runners.process_launch import processes
from chorale.synth.collective import CollectiveName
from chorale.synth.errors import Unavailable
from chorale.synth.topology.topology import Topology


@dataclass(frozen=True, slots=True)
class RankPlacement:
    """Says on which host each rank runs, with facts about the hosts that affect measurements.

    address: this process's address for ranks on other machines; empty if all are on this machine
    """

    hosts: Sequence[processes.Host]
    facts: Facts
    address: str = ""
    close: Callable[[], None] = lambda: None


def place_ranks(topology: Topology, where: str | None, fabric: str | None) -> RankPlacement:
    """Return where the ranks of `topology` run.

    where:  one of NETWORK_KINDS; None for the topology's fabric if it is up, else the cluster
    fabric: name of the fabric, needed if several are up

    Raises InvalidInput if `where` is unknown or several fabrics match, and Unavailable if the network does not exist.
    """
    processes.require_network_kind(where)
    if where == processes.LOOPBACK:
        return RankPlacement([processes.LocalHost()] * topology.compute_count, {"network": processes.LOOPBACK})
    if where != processes.CLUSTER and (up := find_fabric(topology.id, fabric)) is not None:
        return RankPlacement(up.hosts(), up.facts())
    if where != processes.FABRIC and fabric is None and (placement := _cluster(topology)) is not None:
        return placement
    rule = "oneCCL needs a fabric that is up, or a Ray cluster with a node for each rank: {}"
    wanted = f"fabric {fabric}" if fabric else topology.spec or "this topology"
    raise Unavailable(rule, f"there is none for {wanted}", f"run: chorale fabric up {topology.spec or 'FILE'}")


def _cluster(topology: Topology) -> RankPlacement | None:
    from chorale.runners.ray.hosts import RayHosts  # noqa: PLC0415 - Ray takes a second to import

    nodes = RayHosts(topology.compute_count)
    if nodes.hosts is None:
        nodes.close()
        return None
    facts = {"network": processes.CLUSTER, "nodes": ",".join(host.name() for host in nodes.hosts)}
    return RankPlacement(nodes.hosts, facts, nodes.own_address, close=nodes.close)


FIXED_ENVIRONMENT: Mapping[str, str] = {
    "CCL_ATL_TRANSPORT": "ofi",
    # The rank's own thread makes oneCCL progress, because a worker thread would start operations out of order.
    "CCL_WORKER_OFFLOAD": "0",
    "CCL_WORKER_COUNT": "1",
    "CCL_PROCESS_LAUNCHER": "none",
    "CCL_ALGO_FALLBACK": "0",  # unsupported algorithms give an error, not another algorithm
    "CCL_LOG_LEVEL": "error",
    "CCL_ROOT": ".",
    "FI_PROVIDER": "tcp",
    "FI_PROVIDER_PATH": ".",
    "LD_LIBRARY_PATH": ".",
}
_REFUSED = "can not select algo"  # oneCCL's message if an algorithm does not support a collective


class OneCclRanks(StartedRanks):
    """Starts one process per rank for each request, because oneCCL reads environment variables once per process.

    argv:        command that starts a rank, without the arguments that differ between ranks
    files:       name -> content of the files in each process's working folder
    environment: environment variables for this request only
    """

    def __init__(
        self,
        placement: RankPlacement,
        argv: Sequence[str],
        files: Mapping[str, bytes],
        environment: Mapping[str, str],
        deadline: float,
    ) -> None:
        def start(meeting: str, variables: Mapping[str, str]) -> list[processes.ProcessHandle]:
            started = []
            for rank, (host, (index, size)) in enumerate(
                zip(placement.hosts, local_ranks(placement.hosts), strict=True)
            ):
                each = {
                    **processes.rank_environment(), **FIXED_ENVIRONMENT, **environment, **variables,
                    "CCL_LOCAL_RANK": str(index), "CCL_LOCAL_SIZE": str(size),
                }  # fmt: skip
                command = (*argv, meeting, str(rank), str(len(placement.hosts)), host.address)
                started.append(host.start(processes.ProcessSpec(command, each, files)))
            return started

        super().__init__(len(placement.hosts), placement.address, start, deadline, placement.close)

    def _kind_of(self, reason: str) -> FailureKind:
        return FailureKind.REJECTED if _REFUSED in reason else FailureKind.CRASH


def local_ranks(hosts: Sequence[processes.Host]) -> list[tuple[int, int]]:
    """Return, for each rank, its index among the ranks with the same IP address, and the number of these ranks."""
    addresses = [host.address for host in hosts]
    return [(addresses[:rank].count(address), addresses.count(address)) for rank, address in enumerate(addresses)]


_RANGE_BYTES = 16

ALGORITHMS: Mapping[str, tuple[str, ...]] = {
    CollectiveName.ALLREDUCE: ("ring", "double_tree", "recursive_doubling", "rabenseifner", "2d", "nreduce"),
    CollectiveName.ALLGATHER: ("ring", "naive", "flat", "multi_bcast"),
    CollectiveName.REDUCE_SCATTER: ("ring", "naive"),
    CollectiveName.BROADCAST: ("ring", "double_tree", "naive"),
    CollectiveName.REDUCE: ("ring", "tree", "double_tree", "rabenseifner"),
    CollectiveName.ALLTOALL: ("naive", "scatter"),
}
"""Collective -> algorithms of oneCCL's CPU build over libfabric."""

VARIABLES: Mapping[str, str] = {
    name: "CCL_" + {"allgather": "ALLGATHERV", "broadcast": "BCAST"}.get(name, name.upper()) for name in ALGORITHMS
}
"""Collective -> environment variable that assigns algorithms to sizes."""

_BY_SHARD = frozenset({CollectiveName.ALLGATHER, CollectiveName.REDUCE_SCATTER, CollectiveName.ALLTOALL})
"""Collectives whose size, as oneCCL counts it, is that of one rank's shard."""


def library_sizes(request: RunRequest, collective: CollectiveName) -> tuple[dict[tuple[str, int], int], dict[str, str]]:
    """Choose the sizes at which `request`'s library algorithms are measured; no size is below the requested size.

    Returns (algorithm, position in the request's sizes) -> number of elements in the whole vector, and name -> value of
    the environment variable that makes oneCCL use each algorithm at its size.
    """
    element_bytes = ELEMENT_TYPES[request.dtype].dtype.itemsize
    ranks = request.topology.compute_count if collective in _BY_SHARD else 1
    elements: dict[tuple[str, int], int] = {}
    used: dict[int, str] = {}  # index of a range of sizes -> algorithm
    for position, size_bytes in enumerate(request.sizes_bytes):
        for algorithm in request.library:
            number = -(-size_bytes // (ranks * _RANGE_BYTES))
            while number in used:
                number += 1
            used[number] = algorithm
            elements[algorithm, position] = number * _RANGE_BYTES // element_bytes * ranks
    ranges = (f"{name}:{n * _RANGE_BYTES}-{n * _RANGE_BYTES + _RANGE_BYTES - 1}" for n, name in sorted(used.items()))
    return elements, {VARIABLES[collective]: ";".join(ranges)} if used else {}


MAX_RANKS = 256
_WORK_BYTES = 40  # bytes per element that are needed to create and check data

START_LIMIT_S, START_PER_RANK_S = 30.0, 0.5
"""Seconds that ranks may take to connect before a request's time limit starts: a constant, plus an amount per rank."""


RANK = (sys.executable, "-P", "-m", "chorale.runners.oneccl.rank")


class OneCclRunner(LiveRunner[OneCclRanks]):
    """Implements `Runner` with one process per rank. Each process runs all programs and sizes of one request.

    fabric: name of the fabric; needed only if several fabrics have the topology
    where:  `fabric`, `cluster` or `loopback`; None for the topology's fabric if it is up, else a cluster. Loopback has
            no network: times depend on this machine's memory and scheduler

    A request's time limit starts when the ranks are connected; it does not include the one-time build of native code.
    """

    name = "oneccl"

    def __init__(self, fabric: str | None = None, where: str | None = None) -> None:
        super().__init__()
        self._fabric, self._where = fabric, where

    def library(self, collective: str) -> tuple[str, ...]:
        return ALGORITHMS.get(collective, ())

    def _faults(self, request: RunRequest) -> Iterator[RequestFault]:
        yield from super()._faults(request)
        if (ranks := request.topology.compute_count) > MAX_RANKS:
            yield FailureKind.UNAVAILABLE, f"the oneccl runner takes at most {MAX_RANKS} ranks, not {ranks}"

    def _measure(self, request: RunRequest, environment: Environment) -> Measurement:
        native = {LIBRARY: build_library(), ENGINE: engine_library()}
        files = {name: path.read_bytes() for name, path in native.items()}
        placement = place_ranks(request.topology, self._where, self._fabric)
        is_here = not placement.address
        if is_here and (reason := memory_shortage(request, _WORK_BYTES)) is not None:
            raise RunStopped(FailureKind.UNAVAILABLE, reason)
        self._identify({"clock": "monotonic", **PACKAGES, **placement.facts}, environment)
        programs = list(request.without_plans.values())
        elements, variables = library_sizes(request, programs[0].collective.name)
        start_limit = time.monotonic() + START_LIMIT_S + START_PER_RANK_S * len(placement.hosts)
        files |= runtime_files()
        # The key is a new object, which equals no other key, so that later requests do not reuse these ranks.
        ranks = self._group_for(object(), lambda: OneCclRanks(placement, RANK, files, variables, start_limit))
        more = {"store": ranks.hellos[0]["store"], "channels": max(program.channels for program in programs)}
        ranks.load_parts(programs, request.library, more, start_limit, "the ranks connected")
        rounds = MeasurementRounds(ranks, request, time.monotonic() + request.timeout_s, elements)
        results = rounds.measure()
        if not is_here:
            environment["clock_error_us"] = ranks.clock_error_s * 1e6
        self.close()
        return Measurement(self.name, results, environment, rounds.traces)
