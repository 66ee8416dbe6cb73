"""The processes of all ranks over oneCCL: where they run, how they are started, controlled and ended."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from chorale.runners.api.base import FailureKind
from chorale.runners.execution.rank_part import RankPart
from chorale.runners.execution.started_ranks import StartedRanks
from chorale.runners.fabric.fabric import find_fabric
from chorale.runners.measurement.machine import Facts
from chorale.runners.process_launch.processes import (
    CLUSTER,
    FABRIC,
    LOOPBACK,
    Host,
    LocalHost,
    ProcessHandle,
    ProcessSpec,
    rank_environment,
    require_network_kind,
)
from chorale.synth.errors import Unavailable
from chorale.synth.programs.program import Program
from chorale.synth.topology.topology import Topology


@dataclass(frozen=True, slots=True)
class RankPlacement:
    """Every rank's host, and facts that affect measurements there.

    address: this process's address for ranks on other machines; empty if all are on this machine
    """

    hosts: Sequence[Host]
    facts: Facts
    address: str = ""
    close: Callable[[], None] = lambda: None


def place_ranks(topology: Topology, where: str | None, fabric: str | None) -> RankPlacement:
    """Return where the ranks of `topology` run.

    where:  one of NETWORK_KINDS; None for the topology's fabric if it is up, else the cluster
    fabric: name of the fabric, needed if several are up

    Raises InvalidInput for an unknown kind or an ambiguous fabric, and Unavailable if there is no such network.
    """
    require_network_kind(where)
    if where == LOOPBACK:
        return RankPlacement([LocalHost()] * topology.compute_count, {"network": LOOPBACK})
    if where != CLUSTER and (up := find_fabric(topology.id, fabric)) is not None:
        return RankPlacement(up.hosts(), up.facts())
    if where != FABRIC and fabric is None and (placement := _cluster(topology)) is not None:
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
    facts = {"network": CLUSTER, "nodes": ",".join(host.name() for host in nodes.hosts)}
    return RankPlacement(nodes.hosts, facts, nodes.own_address, close=nodes.close)


FIXED_ENVIRONMENT: Mapping[str, str] = {
    "CCL_ATL_TRANSPORT": "ofi",
    # The rank's own thread drives oneCCL, because a worker thread would start operations out of order.
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
    """A process on each host, in rank order, for one request only, because oneCCL reads its variables once per process.

    argv:        each process's command, without its arguments
    files:       files for each process's working folder
    environment: variables for this request only
    """

    def __init__(
        self,
        placement: RankPlacement,
        argv: Sequence[str],
        files: Mapping[str, bytes],
        environment: Mapping[str, str],
        deadline: float,
    ) -> None:
        def start(meeting: str, variables: Mapping[str, str]) -> list[ProcessHandle]:
            started = []
            for rank, (host, (index, size)) in enumerate(
                zip(placement.hosts, local_ranks(placement.hosts), strict=True)
            ):
                each = {
                    **rank_environment(), **FIXED_ENVIRONMENT, **environment, **variables,
                    "CCL_LOCAL_RANK": str(index), "CCL_LOCAL_SIZE": str(size),
                }  # fmt: skip
                command = (*argv, meeting, str(rank), str(len(placement.hosts)), host.address)
                started.append(host.start(ProcessSpec(command, each, files)))
            return started

        super().__init__(len(placement.hosts), placement.address, start, deadline, placement.close)

    def load(self, programs: Sequence[Program], library: Sequence[str], deadline: float) -> None:
        """Connect the ranks and send each its parts: first of `programs`, then of oneCCL's algorithms `library`."""
        call = RankPart.of_library(programs[0].collective, len(self.ranks)).to_json()
        store = next(hello["store"] for _, hello in sorted(self.hellos.items()) if hello["store"])
        head = {"do": "load", "store": store, "channels": max(program.channels for program in programs)}
        commands = [
            head | {"part": [RankPart.of(one, rank).to_json() for one in programs] + [call] * len(library)}
            for rank in self.ranks
        ]
        self.request(commands, deadline, "the ranks connected")

    def _kind_of(self, reason: str) -> FailureKind:
        return FailureKind.REJECTED if _REFUSED in reason else FailureKind.CRASH


def local_ranks(hosts: Sequence[Host]) -> list[tuple[int, int]]:
    """Return (position among the ranks at its address, number of ranks at its address) for each rank."""
    addresses = [host.address for host in hosts]
    return [(addresses[:rank].count(address), addresses.count(address)) for rank, address in enumerate(addresses)]
