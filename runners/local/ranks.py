"""Starts, controls and ends the processes of the local runner: the launcher, the emulated network and the ranks."""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from chorale.runners.api.base import FailureKind, StuckInstruction
from chorale.runners.api.programs import Connection, ConnectionPaths, instruction_name, only_plans, program_connections
from chorale.runners.api.units import full_bandwidth
from chorale.runners.engine.build import build_native
from chorale.runners.engine.library import engine_library, network_target
from chorale.runners.execution.rank_part import FramedSocket, Message
from chorale.runners.execution.rounds import DeadlinePassed, RunStopped, SocketRanks
from chorale.runners.fabric.fabric import find_fabric
from chorale.runners.fabric.plan import NODE_DEVICE
from chorale.runners.local.rank import NETWORK
from chorale.runners.measurement.machine import Facts
from chorale.runners.plans.rank_plans import plan_library
from chorale.runners.process_launch.processes import LOOPBACK, rank_environment
from chorale.synth.errors import Unavailable
from chorale.synth.programs.program import AnyProgram, Program
from chorale.synth.topology.topology import Topology

_GRACE_S = 2.0  # time for the launcher to kill and reap its children
_ANSWER_S = 1.0  # time for the last messages after a failure
_SETTLE_S = 0.2  # time until a killed rank can be distinguished from ranks that report its loss
EMULATED = "emulated"


class NetworkControl:
    """Sends commands to the process that emulates the network. That process ends when this object is closed.

    Methods raise RunStopped if that process has ended or `deadline` (of `time.monotonic()`) passes.
    """

    def __init__(self, stream: socket.socket, topology: Topology) -> None:
        self._stream, self._topology = stream, topology
        self._text = b""
        self._paths = ConnectionPaths(topology)
        self._known: set[Connection] = set()
        self.close = stream.close

    def start(self, deadline: float) -> None:
        """Wait until ranks can connect."""
        self._command([], "ready", deadline, "the network was started")

    def load(self, programs: Iterable[Program], link_mbps: float, deadline: float) -> None:
        """Set the rates of all links, and the paths of the connections that `programs` use."""
        paces = seconds_per_byte(self._topology, link_mbps)
        lines = [f"link {link} {seconds * 1e9:.9g}" for link, seconds in enumerate(paces)]
        missing = {end for program in programs for end in program_connections(program)} - self._known
        paths = ((connection, self._paths.path(connection)) for connection in sorted(missing))
        lines += [" ".join(map(str, ("path", *connection, *links))) for connection, links in paths if links]
        self._command([*lines, "done"], "done", deadline, "the network loaded the programs")
        self._known |= missing

    def error(self) -> str:
        """Return the reason that the emulated network reported for its end, or `it gave no reason`."""
        self._stream.setblocking(False)
        with contextlib.suppress(OSError):
            self._text += self._stream.recv(65536)
        lines = self._text.decode(errors="replace").splitlines()
        return next((line.removeprefix("error ") for line in lines if line.startswith("error ")), "it gave no reason")

    def _failure(self) -> RunStopped:
        return RunStopped(FailureKind.CRASH, f"the emulated network failed: {self.error()}")

    def _command(self, lines: Sequence[str], answer: str, deadline: float, doing: str) -> None:
        try:
            self._stream.settimeout(max(1e-6, deadline - time.monotonic()))
            self._stream.sendall("".join(f"{line}\n" for line in lines).encode())
            while b"\n" not in self._text:
                self._stream.settimeout(max(1e-6, deadline - time.monotonic()))
                if not (received := self._stream.recv(65536)):
                    break
                self._text += received
        except TimeoutError:
            raise DeadlinePassed(doing) from None
        except OSError:
            raise self._failure() from None
        if not self._text.startswith(f"{answer}\n".encode()):
            raise self._failure()
        self._text = self._text.removeprefix(f"{answer}\n".encode())


def seconds_per_byte(topology: Topology, link_mbps: float) -> list[float]:
    """Return each link's time per byte in seconds. Links with the `full_bandwidth` have the rate `link_mbps`."""
    full = full_bandwidth(topology)
    table = [8 / (link_mbps * 1e6 * float(bandwidth / full)) for bandwidth in topology.links.bandwidths]
    return [table[index] for index in topology.links.bandwidth_class.tolist()]


@cache
def native_code() -> tuple[Path, Path]:
    """Return the paths of the engine and the network emulator; build them first if necessary (up to a minute).

    Raises Unavailable without a compiler.
    """
    return engine_library(), build_native(network_target())


class LocalRanks(SocketRanks):
    """Runs one process per rank of `topology`, and their launcher, until `close` is called or this process ends.

    There is also a process that emulates the network, unless ranks in `placement` reach one another without it.
    uses_gloo: whether `load` may request Gloo's collectives
    """

    def __init__(
        self, topology: Topology, deadline: float, placement: RankLocations | None = None, uses_gloo: bool = False
    ) -> None:
        super().__init__(topology.compute_count)
        self._placement = placement or RankLocations()
        self.uses_gloo = uses_gloo
        self._programs: list[AnyProgram] = []
        # Only Gloo needs a folder: nobody would remove it after a SIGKILL of this process.
        self._folder = tempfile.TemporaryDirectory(prefix="chorale-ranks-") if uses_gloo else None
        self._token = secrets.token_bytes(16)
        self._meeting = f"chorale-network-{os.getpid()}-{secrets.token_hex(8)}"
        self._addresses = [f"net:unix:{self._meeting}"] * len(self.ranks)
        library, network_path = native_code()
        task = {
            "library": str(library),
            "network": None if self._placement.listen else [str(network_path), self._meeting],
            "namespaces": self._placement.namespaces,
            "uses_gloo": uses_gloo,
        }
        pairs = [socket.socketpair() for _ in range(len(self.ranks) + 2)]
        launcher, network, *ranks = (end for end, _ in pairs)
        self._launcher = self.watched = FramedSocket(launcher)
        self._network = NetworkControl(network, topology)
        self._channels = [FramedSocket(end) for end in ranks]
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - close() closes it
        try:
            descriptors = [end.fileno() for _, end in pairs]
            command = [sys.executable, "-P", "-m", "chorale.runners.local.rank", *map(str, descriptors)]
            self._process = subprocess.Popen(  # noqa: S603 - our own module
                command,
                pass_fds=descriptors,
                start_new_session=True,
                env={**os.environ, **rank_environment()},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors.fileno(),
            )
        finally:
            for _, end in pairs:
                end.close()
        try:
            self._start(task, deadline)
        except BaseException:
            self.close()
            raise

    def load(
        self, programs: Iterable[AnyProgram], link_mbps: float | None, deadline: float, library: Sequence[str] = ()
    ) -> None:
        """Send every rank its parts of `programs`, then a part for each library algorithm. Also set the link rates.

        link_mbps: rate of links with the `full_bandwidth`; None if the network is not emulated
        """
        self._programs = list(programs)
        if link_mbps is not None:
            programs_of_ranks = [each for each in self._programs if isinstance(each, Program)]
            self._network.load(programs_of_ranks, link_mbps, deadline)
        plans = str(plan_library()) if only_plans(self._programs) else None
        more = {"deadline": deadline, "token": self._token.hex(), "addresses": self._addresses, "plans": plans}
        self.load_parts(self._programs, library, more, deadline, "the programs were loaded")

    def close(self, gracefully: bool = True) -> None:
        """End and reap every process immediately, even if `gracefully` is set. Safe to call twice."""
        self._network.close()
        for channel in (self._launcher, *self._channels):
            channel.close()
        self._errors.close()
        try:
            self._process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if self._folder is not None:
            self._folder.cleanup()

    def _start(self, task: Message, deadline: float) -> None:
        try:
            self._launcher.send(task, deadline)
            answer = self._launcher.receive(deadline)
        except TimeoutError:
            raise DeadlinePassed("the processes were started") from None
        except OSError:
            answer = None
        if answer is None:
            raise RunStopped(FailureKind.CRASH, f"the launcher did not start: {self._last_error()}")
        self.pids = answer["pids"]
        if not self._placement.listen:
            self._network.start(deadline)
        else:
            commands: list[Message] = [{"do": "listen", "address": address} for address in self._placement.listen]
            answers = self.request(commands, deadline, "the ranks began to listen")
            self._addresses = [answers[rank]["address"] for rank in self.ranks]
        if self._folder is not None:
            meeting = {"do": "gloo", "store": f"{self._folder.name}/store", "interface": self._placement.interface}
            self.request(meeting, deadline, "the ranks met for Gloo")

    def _stuck(self, rank: int, answer: Message) -> list[StuckInstruction]:
        if not answer["blocks"]:
            return []
        program = self._programs[answer["program"]]
        return [
            (block, step, f"{instruction_name(program, (rank, block, step))} {why}")
            for block, step, why in answer["blocks"]
        ]

    def _refusal(self, rank: int, message: str) -> RunStopped:
        if select.select([self._launcher], (), (), _SETTLE_S)[0]:
            return self._death()
        return RunStopped(FailureKind.CRASH, f"rank {rank} failed: {message}", rank)

    def _death(self) -> RunStopped:
        """Return the failure for a rank's death. Ranks that lose a neighbour keep running, so the first death is the
        cause.
        """
        deadline = time.monotonic() + _ANSWER_S
        try:
            while (report := self._launcher.receive(deadline)) is not None:
                if not (code := report["code"]):
                    continue
                rank = None if report["died"] == NETWORK else int(report["died"])
                name = "the emulated network" if rank is None else f"rank {rank}"
                if code < 0:
                    return RunStopped(FailureKind.CRASH, f"{name} was killed by {signal.Signals(-code).name}", rank)
                reason = self._network.error() if rank is None else "it gave no reason"
                with contextlib.suppress(OSError):
                    while rank is not None and (answer := self._channels[rank].receive(deadline)) is not None:
                        reason = answer.get("message", reason)
                return RunStopped(FailureKind.CRASH, f"{name} failed: {reason}", rank)
        except OSError:
            return RunStopped(FailureKind.CRASH, "a rank ended without a reason")
        return RunStopped(FailureKind.CRASH, f"the launcher died: {self._last_error()}")

    def _last_error(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "no reason given"


@dataclass(frozen=True, slots=True)
class RankLocations:
    """Says where ranks run: in the current namespaces, in a fabric's namespaces, or behind an emulated network.

    listen:     address at which each rank's engine listens; empty if all connect through an emulated network
    namespaces: files of the namespaces that each rank enters, user namespace first; empty to stay in the current ones
    interface:  network device through which libraries reach other ranks
    facts:      facts about the network, for a measurement's environment
    """

    listen: tuple[str, ...] = ()
    namespaces: tuple[tuple[str, ...], ...] = ()
    interface: str = "lo"
    facts: Facts = field(default_factory=lambda: {"network": EMULATED})


def placement_of(topology: Topology, where: str, fabric: str | None) -> RankLocations:
    """Return where the ranks of `topology` run. `where` is EMULATED, FABRIC or LOOPBACK.

    Raises InvalidInput if several fabrics match, and Unavailable if there is no such fabric.
    """
    if where == EMULATED:
        return RankLocations()
    if where == LOOPBACK:
        names = f"chorale-{os.getpid()}-{secrets.token_hex(8)}"
        listen = tuple(f"shm:{names}-{rank}" for rank in range(topology.compute_count))
        return RankLocations(listen, facts={"network": LOOPBACK})
    up = find_fabric(topology.id, fabric)
    if up is None:
        wanted = f"fabric {fabric}" if fabric else topology.spec or "this topology"
        way_out = f"run: chorale fabric up {topology.spec or 'FILE'} --link-mbps 50"
        raise Unavailable("no fabric is up for this topology: {}", wanted, way_out)
    # Root must not enter the user namespace, because it would lose its rights to other users' files there.
    user = (f"/proc/{up.pid}/ns/user",) if up.in_user_namespace and os.geteuid() != 0 else ()
    return RankLocations(
        tuple(f"tcp:{up.address(rank)}" for rank in range(up.ranks)),
        tuple((*user, f"/proc/{up.pid}/root/run/netns/{up.hostname(rank)}") for rank in range(up.ranks)),
        NODE_DEVICE,
        up.facts(),
    )
