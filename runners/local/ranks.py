"""The launcher, the emulated network and the ranks: start them, load programs, send commands, end them."""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from chorale.runners.api.base import FailureKind
from chorale.runners.api.programs import instruction_name, only_plans, only_programs
from chorale.runners.engine.library import engine_library
from chorale.runners.execution.rank_part import RankPart
from chorale.runners.execution.rounds import DeadlinePassed, RunStopped, StuckInstruction
from chorale.runners.local.framing import FramedSocket, Message
from chorale.runners.local.launcher import NETWORK
from chorale.runners.local.network import NetworkControl, NetworkError, network_program
from chorale.runners.local.placement import RankLocations
from chorale.runners.plans.encoding import port_pairs
from chorale.runners.plans.library import plan_library
from chorale.synth.programs.postconditions import AnyProgram
from chorale.synth.topology.topology import Topology

_GRACE_S = 2.0  # for the launcher to kill and reap its children
_ANSWER_S = 1.0  # for what is left to say after a failure
_SETTLE_S = 0.2  # for who was killed to be told from who complains of it
_LEAD_S = 0.008  # from the order to start until the start, so that every rank has heard it
_LEAD_PER_RANK_S = 0.0002


@cache
def native_code() -> tuple[Path, Path]:
    """Return the engine and the network, built where that was not done before, which takes a minute or less.

    Unavailable without a compiler.
    """
    return engine_library(), network_program()


class LocalRanks:
    """One launcher and one process per rank of `topology`, alive until `close` or this process ends.

    There is a process for the network too, unless `placement` has the ranks reach one another without.
    uses_gloo: whether `load` may be asked for collectives of Gloo

    Every method raises RunStopped when a process dies or `deadline` (of `time.monotonic()`) passes; after
    that they are only good for `blocked_ranks` and `close`.
    """

    def __init__(
        self, topology: Topology, deadline: float, placement: RankLocations | None = None, uses_gloo: bool = False
    ) -> None:
        self._placement = placement or RankLocations()
        self.uses_gloo = uses_gloo
        self.ranks = range(topology.compute_count)
        self.pids: list[int] = []
        self._programs: list[AnyProgram] = []
        self._folder = tempfile.TemporaryDirectory(prefix="chorale-ranks-")
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
        self._launcher = FramedSocket(launcher)
        self._network = NetworkControl(network, topology)
        self._channels = [FramedSocket(end) for end in ranks]
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - close() closes it
        try:
            self._process = _start_launcher([end.fileno() for _, end in pairs], self._errors.fileno())
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
        """Give every rank its part of each of `programs` and then of `library`, and links their pace.

        link_mbps: None where the network is not emulated
        """
        self._programs = list(programs)
        if link_mbps is not None:
            self._command_network(
                lambda: self._network.load(only_programs(self._programs), link_mbps, deadline),
                "the network was told of the programs",
            )
        call = RankPart.of_library(self._programs[0].collective, len(self.ranks)).to_json()
        head = {
            "do": "load",
            "deadline": deadline,
            "token": self._token.hex(),
            "addresses": self._addresses,
            "plans": str(plan_library()) if only_plans(self._programs) else None,
        }
        parts = [[RankPart.of(each, rank).to_json() for each in self._programs] for rank in self.ranks]
        ports = self._ports(deadline)
        commands = [
            head | {"programs": own + [call] * len(library), "ports": ends}
            for own, ends in zip(parts, ports, strict=True)
        ]
        self.request(commands, deadline, "the programs were loaded")

    def _ports(self, deadline: float) -> list[dict[str, Any] | None]:
        """Let all ranks listen for the ports of plans; return what each must know to connect them, None without any."""
        pairs = {pair for plan in only_plans(self._programs) for pair in port_pairs(plan)}
        if not pairs:
            return [None for _ in self.ranks]
        names = [f"chorale-ports-{os.getpid()}-{secrets.token_hex(8)}-{rank}" for rank in self.ranks]
        self.request({"do": "ports", "names": names}, deadline, "the ranks began to listen for ports")
        head = {"names": names, "token": self._token.hex()}
        return [
            head
            | {
                "to": sorted(target for source, target in pairs if source == rank),
                "from": sorted(source for source, target in pairs if target == rank),
            }
            for rank in self.ranks
        ]

    def send(self, command: Message | Sequence[Message], deadline: float) -> None:
        """Send `command` to every rank, or the n-th of several to the n-th rank."""
        for rank, channel in enumerate(self._channels):
            try:
                channel.send(command if isinstance(command, dict) else command[rank], deadline)
            except TimeoutError:
                raise DeadlinePassed(f"rank {rank} did not listen") from None
            except OSError:
                raise self._death() from None

    def receive(self, deadline: float, doing: str) -> Mapping[int, Message]:
        """Return one answer of each rank; `doing` says what they do, for the error message."""
        replies: dict[int, Message] = {}
        with selectors.DefaultSelector() as selector:
            selector.register(self._launcher, selectors.EVENT_READ, -1)
            for rank, channel in enumerate(self._channels):
                selector.register(channel, selectors.EVENT_READ, rank)
            while len(selector.get_map()) > 1:
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                if not ready:
                    raise DeadlinePassed(doing)
                for key, _ in ready:
                    replies[key.data] = self._read(key.data, deadline)
                    selector.unregister(key.fileobj)
        return replies

    def request(self, command: Message | Sequence[Message], deadline: float, doing: str) -> Mapping[int, Message]:
        """Send `command` to every rank and return the answer of each."""
        self.send(command, deadline)
        return self.receive(deadline, doing)

    def timed_start(self, deadline: float, doing: str) -> float:
        """Start what the ranks have prepared at one time; return the seconds from then to the last one's end."""
        start = time.monotonic() + _LEAD_S + _LEAD_PER_RANK_S * len(self.ranks)
        self.send({"do": "go", "at": start, "deadline": deadline}, deadline)
        ends = self.receive(deadline, doing)
        return float(max(answer["end"] for answer in ends.values()) - start)

    def blocked_ranks(self) -> dict[int, list[StuckInstruction] | None]:
        """Return per rank the (block, instruction, reason) that it is stuck at; None for a rank that is silent."""
        deadline = time.monotonic() + _ANSWER_S
        blocked: dict[int, list[StuckInstruction] | None] = dict.fromkeys(self.ranks)
        with selectors.DefaultSelector() as selector:
            for rank in self.ranks:
                with contextlib.suppress(OSError):
                    self._channels[rank].send({"do": "status"}, deadline)
                    selector.register(self._channels[rank], selectors.EVENT_READ, rank)
            while selector.get_map() and (ready := selector.select(max(0.0, deadline - time.monotonic()))):
                for key, _ in ready:
                    answer = self._final_reply(key.data, deadline)
                    if answer is None or answer["answer"] == "blocked":
                        selector.unregister(key.fileobj)
                        blocked[key.data] = None if answer is None else self._stuck(key.data, answer)
        return blocked

    def close(self) -> None:
        """End and reap every process. Safe to call twice."""
        self._network.close()
        for channel in (self._launcher, *self._channels):
            channel.close()
        self._errors.close()
        try:
            self._process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
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
            self._command_network(lambda: self._network.start(self._token, deadline), "the network was started")
        else:
            commands: list[Message] = [{"do": "listen", "address": address} for address in self._placement.listen]
            answers = self.request(commands, deadline, "the ranks began to listen")
            self._addresses = [answers[rank]["address"] for rank in self.ranks]
        if self.uses_gloo:
            meeting = {"do": "gloo", "store": f"{self._folder.name}/store", "interface": self._placement.interface}
            self.request(meeting, deadline, "the ranks met for Gloo")

    def _command_network(self, command: Callable[[], None], doing: str) -> None:
        try:
            command()
        except TimeoutError:
            raise DeadlinePassed(doing) from None
        except NetworkError as error:
            raise RunStopped(FailureKind.CRASH, f"the emulated network failed: {error}") from None

    def _stuck(self, rank: int, answer: Message) -> list[StuckInstruction]:
        """Return where the blocks of a rank are stuck, with the names of the instructions."""
        if not answer["blocks"]:
            return []
        program = self._programs[answer["program"]]
        return [
            (block, step, f"{instruction_name(program, (rank, block, step))} {why}")
            for block, step, why in answer["blocks"]
        ]

    def _read(self, rank: int, deadline: float) -> Message:
        """Return the reply of a rank; a death or an error becomes RunStopped."""
        if rank < 0:
            raise self._death()
        try:
            answer = self._channels[rank].receive(deadline)
        except TimeoutError:
            raise DeadlinePassed(f"rank {rank} spoke") from None
        if answer is None:
            raise self._death()
        if answer["answer"] == "error":
            if select.select([self._launcher], (), (), _SETTLE_S)[0]:
                raise self._death()
            raise RunStopped(FailureKind.CRASH, f"rank {rank} failed: {answer['message']}", rank)
        return answer

    def _final_reply(self, rank: int, deadline: float) -> Message | None:
        try:
            return self._channels[rank].receive(deadline)
        except OSError:
            return None

    def _death(self) -> RunStopped:
        """Return who died of what. Whoever only loses a neighbour stays, so the first to die is the cause."""
        deadline = time.monotonic() + _ANSWER_S
        try:
            while (report := self._launcher.receive(deadline)) is not None:
                if report["code"]:
                    return self._death_of(report["died"], report["code"], deadline)
        except OSError:
            return RunStopped(FailureKind.CRASH, "a rank ended without a reason")
        return RunStopped(FailureKind.CRASH, f"the launcher died: {self._last_error()}")

    def _death_of(self, number: int, code: int, deadline: float) -> RunStopped:
        name, rank = ("the emulated network", None) if number == NETWORK else (f"rank {number}", number)
        if code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
        else:
            how = f"failed: {self._network.error() if rank is None else self._last_words(rank, deadline)}"
        return RunStopped(FailureKind.CRASH, f"{name} {how}", rank)

    def _last_words(self, rank: int, deadline: float) -> str:
        reason = "it gave no reason"
        with contextlib.suppress(OSError):
            while (answer := self._channels[rank].receive(deadline)) is not None:
                reason = answer.get("message", reason)
        return reason

    def _last_error(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "no reason given"


def _start_launcher(descriptors: list[int], errors: int) -> subprocess.Popen[bytes]:
    """Start the launcher without forking this process's threads; it inherits only `descriptors`."""
    environment = dict(os.environ)
    root = str(Path(__file__).parents[3])
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [root, environment.get("PYTHONPATH")]))
    # One thread per process: there are more ranks than cores, and the launcher forks.
    environment.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))
    command = [sys.executable, "-P", "-m", "chorale.runners.local.launcher", *map(str, descriptors)]
    return subprocess.Popen(  # noqa: S603 - our own module
        command,
        pass_fds=descriptors,
        start_new_session=True,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=errors,
    )
