"""The processes of all ranks over oneCCL: where they run, how they are started, commanded and ended."""

from __future__ import annotations

import contextlib
import secrets
import select
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from chorale.runners.api.base import FailureKind
from chorale.runners.execution.rank_part import FramedSocket, RankPart
from chorale.runners.execution.rounds import DeadlinePassed, RunStopped, SocketRanks
from chorale.runners.fabric.fabric import find_fabric
from chorale.runners.measurement.clocks import ClockOffset, clock_identity, clock_offset, clock_samples, same_clocks
from chorale.runners.measurement.machine import Facts
from chorale.runners.process_launch.processes import (
    CLUSTER,
    FABRIC,
    LOOPBACK,
    STDERR,
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
    """The host of every rank, and facts that measurements there depend on.

    address:      where ranks on other machines reach this process; empty if all are on this machine
    """

    hosts: Sequence[Host]
    facts: Facts
    address: str = ""
    close: Callable[[], None] = lambda: None


def place_ranks(topology: Topology, where: str | None, fabric: str | None) -> RankPlacement:
    """Return where the ranks of `topology` run.

    where:  one of NETWORK_KINDS; None takes the fabric that is up for the topology, else the cluster
    fabric: name of the fabric, needed where several are up

    InvalidInput for an unknown kind or an ambiguous fabric; Unavailable if there is no such network.
    """
    require_network_kind(where)
    if where == LOOPBACK:
        return RankPlacement([LocalHost()] * topology.compute_count, {"network": LOOPBACK})
    if where != CLUSTER and (up := find_fabric(topology.id, fabric)) is not None:
        return RankPlacement(up.hosts(), up.facts())
    if where != FABRIC and fabric is None and (placement := _cluster(topology)) is not None:
        return placement
    rule = (
        "oneCCL needs a network that is the topology: a fabric that is up, or a Ray cluster with a node for each rank"
    )
    wanted = f"fabric {fabric}" if fabric else topology.spec or "this topology"
    raise Unavailable(rule, f"none for {wanted}", f"run: chorale fabric up {topology.spec or 'FILE'}")


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
    # Ranks themselves give oneCCL its turns: a worker thread would start operations out of order.
    "CCL_WORKER_OFFLOAD": "0",
    "CCL_WORKER_COUNT": "1",
    "CCL_PROCESS_LAUNCHER": "none",
    "CCL_ALGO_FALLBACK": "0",  # an algorithm that does not serve is an error instead of another algorithm
    "CCL_LOG_LEVEL": "error",
    "CCL_ROOT": ".",
    "FI_PROVIDER": "tcp",
    "FI_PROVIDER_PATH": ".",
    "LD_LIBRARY_PATH": ".",
}
_LOOK_S = 0.1  # between looks for ranks that die before they speak
_HELLO_S = 5.0  # for who connects to say who it is
_SETTLE_S = 0.3  # for who was killed to be told from who only lost a neighbour
_REFUSED = "can not select algo"  # what oneCCL says of an algorithm that does not serve a collective


class OneCclRanks(SocketRanks):
    """A process on each host, in the order of the ranks, for one request: oneCCL reads its variables once.

    argv:        what each is, before its arguments
    files:       of the working folder of each
    environment: variables besides those that all requests have

    The processes speak to this one through a socket, in a folder where all are on this machine.
    """

    def __init__(
        self,
        placement: RankPlacement,
        argv: Sequence[str],
        files: Mapping[str, bytes],
        environment: Mapping[str, str],
        deadline: float,
    ) -> None:
        super().__init__(len(placement.hosts))
        self._close_placement, self._started = placement.close, list[ProcessHandle]()
        self._clocks: dict[int, str] = {}
        self._store = ""
        self._folder = tempfile.mkdtemp(prefix="chorale-oneccl-")
        self._listener = socket.socket(socket.AF_INET if placement.address else socket.AF_UNIX)
        try:
            self._listener.bind(("", 0) if placement.address else f"{self._folder}/ranks")
            self._listener.listen(len(self.ranks))
            port = self._listener.getsockname()[1]
            meeting = f"{placement.address}:{port}" if placement.address else f"{self._folder}/ranks"
            token = secrets.token_hex(16)
            positions = local_ranks(placement.hosts)
            for rank, (host, (index, size)) in enumerate(zip(placement.hosts, positions, strict=True)):
                variables = {
                    **rank_environment(), **FIXED_ENVIRONMENT, **environment,
                    "CHORALE_TOKEN": token, "CCL_LOCAL_RANK": str(index), "CCL_LOCAL_SIZE": str(size),
                }  # fmt: skip
                command = (*argv, meeting, str(rank), str(len(self.ranks)), host.address)
                self._started.append(host.start(ProcessSpec(command, variables, files)))
            self._meet(token, deadline)
        except BaseException:
            self.close()
            raise

    def _meet(self, token: str, deadline: float) -> None:
        """Wait until every rank has said hello; strangers do not know the token."""
        said: dict[int, FramedSocket] = {}
        pids: dict[int, int] = {}
        while len(said) < len(self.ranks):
            if time.monotonic() > deadline:
                raise DeadlinePassed("the ranks were started")
            if not select.select([self._listener], (), (), _LOOK_S)[0]:
                if any(started.poll() is not None for started in self._started):
                    raise self._death()
                continue
            channel, hello = FramedSocket(self._listener.accept()[0]), None
            self._channels.append(channel)
            with contextlib.suppress(OSError, ValueError):
                hello = channel.receive(min(deadline, time.monotonic() + _HELLO_S))
            if hello is None or not secrets.compare_digest(str(hello.get("token", "")), token):
                self._channels.pop().close()
                continue
            rank = hello["rank"]
            said[rank], pids[rank], self._clocks[rank] = channel, hello["pid"], hello["clock"]
            self._store = self._store or hello["store"]
        self._channels, self.pids = [said[rank] for rank in self.ranks], [pids[rank] for rank in self.ranks]

    def load(self, programs: Sequence[Program], library: Sequence[str], deadline: float) -> None:
        """Let the ranks join, and give each its part of `programs` and then of oneCCL's algorithms `library`."""
        call = RankPart.of_library(programs[0].collective, len(self.ranks)).to_json()
        head = {"do": "load", "store": self._store, "channels": max(program.channels for program in programs)}
        commands = [
            head | {"part": [RankPart.of(one, rank).to_json() for one in programs] + [call] * len(library)}
            for rank in self.ranks
        ]
        self.request(commands, deadline, "the ranks looked for one another")

    def _clock_offsets(self, deadline: float) -> Mapping[int, ClockOffset]:
        own = clock_identity()
        offsets = same_clocks([own, *(self._clocks[rank] for rank in self.ranks)])
        offsets = {position - 1: offset for position, offset in offsets.items() if position > 0}
        for rank in set(self.ranks) - offsets.keys():
            offsets[rank] = self._measured_offset(rank, deadline)
        return offsets

    def _measured_offset(self, rank: int, deadline: float) -> ClockOffset:
        def exchange() -> tuple[float, float]:
            self._channels[rank].send({"do": "clock"}, deadline)
            at_s = float(self._read(rank, deadline)["time"])
            return at_s, at_s

        try:
            return clock_offset(clock_samples(exchange, time.monotonic))
        except OSError:
            raise self._death() from None

    def _refusal(self, rank: int, message: str) -> RunStopped:
        if _REFUSED in message:
            return RunStopped(FailureKind.REJECTED, f"rank {rank} failed: {message}", rank)
        return self._death(f"rank {rank} failed: {message}", rank)

    def _death(self, otherwise: str = "a rank ended without a reason", rank: int | None = None) -> RunStopped:
        """Return who died of what. A rank that loses another gives up, so one that was killed comes first."""
        time.sleep(_SETTLE_S)
        codes = [(number, code) for number, one in enumerate(self._started) if (code := one.poll()) is not None]
        for number, code in codes:
            if code < 0 and code != -signal.SIGABRT:
                return RunStopped(
                    FailureKind.CRASH, f"rank {number} was killed by {signal.Signals(-code).name}", number
                )
        if rank is None and codes:
            rank, code = codes[0]
            lines = self._started[rank].read(STDERR).decode(errors="replace").strip().splitlines()
            reason = " ".join(lines[-1].split()) if lines else "no reason given"
            kind = FailureKind.REJECTED if _REFUSED in reason else FailureKind.CRASH
            return RunStopped(kind, f"rank {rank} ended with code {code}: {reason}", rank)
        return RunStopped(FailureKind.CRASH, otherwise, rank)

    def close(self, gracefully: bool = True) -> None:
        """Kill all: oneCCL would wait for ranks that may be gone. Safe to call twice."""
        for channel in self._channels:
            channel.close()
        self._listener.close()
        for started in self._started:
            started.kill()
        for started in self._started:
            started.close()
        self._started.clear()
        shutil.rmtree(self._folder, ignore_errors=True)
        with contextlib.suppress(Unavailable):
            self._close_placement()


def local_ranks(hosts: Sequence[Host]) -> list[tuple[int, int]]:
    """Return for each rank its position among those at the same address, and how many those are."""
    addresses = [host.address for host in hosts]
    return [(addresses[:rank].count(address), addresses.count(address)) for rank, address in enumerate(addresses)]
