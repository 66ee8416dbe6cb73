"""The launcher and node processes of one network: start them, load programs, send commands, end them."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path

from chorale.runners.api.base import FailureKind
from chorale.runners.execution.node_plan import encode_plan, node_plans
from chorale.runners.execution.rounds import DeadlinePassed, RunStopped
from chorale.runners.local.framing import FramedSocket, Message
from chorale.synth.programs.program import Program
from chorale.synth.topology.topology import Topology

_GRACE_S = 2.0  # for the launcher to kill and reap its nodes
_ANSWER_S = 1.0  # for what is left to say after a failure
_LEAD_S = 0.008  # from the order to start until the start, so that every rank has heard it
_LEAD_PER_NODE_S = 0.0002


class LocalRanks:
    """One launcher and one process per node of `topology`, alive until `close` or until this process ends.

    Every method raises RunStopped when a process dies or `deadline` (of `time.monotonic()`) passes; after
    that they are only good for `blocked_ranks` and `close`.
    """

    def __init__(self, topology: Topology, deadline: float) -> None:
        self.nodes = range(topology.node_count)
        self.ranks = range(topology.compute_count)
        self.pids: list[int] = []
        pairs = [socket.socketpair() for _ in range(topology.node_count + 1)]
        channels = [FramedSocket(end) for end, _ in pairs]
        self._launcher, self._nodes = channels[0], channels[1:]
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - close() closes it
        try:
            self._process = _start_launcher([end.fileno() for _, end in pairs], self._errors.fileno())
        finally:
            for _, end in pairs:
                end.close()
        try:
            self._start_nodes(topology, deadline)
        except BaseException:
            self.close()
            raise

    def send(self, command: Message | Sequence[Message], deadline: float) -> None:
        """Send `command` to every node, or the n-th of several to the n-th node."""
        for node, channel in enumerate(self._nodes):
            try:
                channel.send(command if isinstance(command, dict) else command[node], deadline)
            except TimeoutError:
                raise DeadlinePassed(f"node {node} did not listen") from None
            except OSError:
                raise self._death() from None

    def receive(self, nodes: Iterable[int], deadline: float, doing: str) -> Mapping[int, Message]:
        """Return one answer of each of `nodes`; `doing` says what they do, for the error message."""
        replies: dict[int, Message] = {}
        with selectors.DefaultSelector() as selector:
            selector.register(self._launcher, selectors.EVENT_READ, -1)
            for node in nodes:
                selector.register(self._nodes[node], selectors.EVENT_READ, node)
            while len(selector.get_map()) > 1:
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                if not ready:
                    raise DeadlinePassed(doing)
                for key, _ in ready:
                    replies[key.data] = self._read(key.data, deadline)
                    selector.unregister(key.fileobj)
        return replies

    def request(self, command: Message | Sequence[Message], deadline: float, doing: str) -> Mapping[int, Message]:
        """Send `command` to every node and return the answer of each."""
        self.send(command, deadline)
        return self.receive(self.nodes, deadline, doing)

    def timed_start(self, deadline: float, doing: str) -> float:
        """Start what the ranks have prepared at one time; return the seconds from then to the last one's end."""
        start = time.monotonic() + _LEAD_S + _LEAD_PER_NODE_S * len(self.nodes)
        self.send({"do": "go", "at": start}, deadline)
        ends = self.receive(self.ranks, deadline, doing)
        return float(max(answer["end"] for answer in ends.values()) - start)

    def blocked_ranks(self) -> dict[int, list[tuple[int, int, str]] | None]:
        """Return per rank the (block, instruction, reason) that it is stuck at; None for a rank that is silent."""
        deadline = time.monotonic() + _ANSWER_S
        blocked: dict[int, list[tuple[int, int, str]] | None] = dict.fromkeys(self.ranks)
        with selectors.DefaultSelector() as selector:
            for rank in self.ranks:
                with contextlib.suppress(OSError):
                    self._nodes[rank].send({"do": "status"}, deadline)
                    selector.register(self._nodes[rank], selectors.EVENT_READ, rank)
            while selector.get_map() and (ready := selector.select(max(0.0, deadline - time.monotonic()))):
                for key, _ in ready:
                    answer = self._final_reply(key.data, deadline)
                    if answer is None or answer["answer"] == "blocked":
                        selector.unregister(key.fileobj)
                        blocked[key.data] = None if answer is None else [tuple(block) for block in answer["blocks"]]
        return blocked

    def close(self) -> None:
        """End and reap every process. Safe to call twice."""
        for channel in (self._launcher, *self._nodes):
            channel.close()
        self._errors.close()
        try:
            self._process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _start_nodes(self, topology: Topology, deadline: float) -> None:
        links = list(zip(topology.links.src.tolist(), topology.links.dst.tolist(), strict=True))
        try:
            self._launcher.send({"links": links}, deadline)
            answer = self._launcher.receive(deadline)
        except TimeoutError:
            raise DeadlinePassed("the processes were started") from None
        except OSError:
            answer = None
        if answer is None:
            raise RunStopped(FailureKind.CRASH, f"the launcher did not start: {self._last_error()}")
        self.pids = answer["pids"]

    def _read(self, node: int, deadline: float) -> Message:
        """Return the reply of a node; a death or an error becomes RunStopped."""
        if node < 0:
            raise self._death()
        try:
            answer = self._nodes[node].receive(deadline)
        except TimeoutError:
            raise DeadlinePassed(f"node {node} spoke") from None
        if answer is None:
            raise self._death()
        if answer["answer"] == "error":
            raise RunStopped(FailureKind.CRASH, f"{self._name(node)} failed: {answer['message']}", node)
        return answer

    def _final_reply(self, node: int, deadline: float) -> Message | None:
        try:
            return self._nodes[node].receive(deadline)
        except OSError:
            return None

    def _death(self) -> RunStopped:
        """Return who died of what. Neighbours of a dead node leave in good order, so a bad exit is the cause."""
        deadline = time.monotonic() + _ANSWER_S
        try:
            while (report := self._launcher.receive(deadline)) is not None:
                node, code = report["died"], report["code"]
                if code < 0:
                    message = f"{self._name(node)} was killed by {signal.Signals(-code).name}"
                    return RunStopped(FailureKind.CRASH, message, self._rank(node))
                if code > 0:
                    return self._failed(node, deadline)
        except OSError:
            return RunStopped(FailureKind.CRASH, "a node ended without a reason")
        return RunStopped(FailureKind.CRASH, f"the launcher died: {self._last_error()}")

    def _failed(self, node: int, deadline: float) -> RunStopped:
        reason = "it gave no reason"
        with contextlib.suppress(OSError):
            while (answer := self._nodes[node].receive(deadline)) is not None:
                reason = answer.get("message", reason)
        return RunStopped(FailureKind.CRASH, f"{self._name(node)} failed: {reason}", self._rank(node))

    def _name(self, node: int) -> str:
        return f"rank {node}" if node in self.ranks else f"switch {node - len(self.ranks)}"

    def _rank(self, node: int) -> int | None:
        return node if node in self.ranks else None

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


def load_programs(
    ranks: LocalRanks, topology: Topology, programs: Iterable[Program], link_mbps: float, deadline: float
) -> None:
    """Give every node its part of each of `programs` and the pace of its links."""
    plans = [[encode_plan(plan) for plan in node_plans(program, topology)] for program in programs]
    paces: list[list[tuple[int, float]]] = [[] for _ in ranks.nodes]
    for link, seconds in enumerate(seconds_per_byte(topology, link_mbps)):
        paces[int(topology.links.src[link])].append((link, seconds))
    commands = [
        {"do": "load", "plans": [program[node] for program in plans], "seconds_per_byte": paces[node]}
        for node in ranks.nodes
    ]
    ranks.request(commands, deadline, "the programs were loaded")


def seconds_per_byte(topology: Topology, link_mbps: float) -> list[float]:
    """Return the pace of every link.

    `link_mbps` is the rate of a link of bandwidth 1 where the unit is links, else of the fastest link: GB/s
    fabrics run as scale models with the right proportions.
    """
    full = Fraction(1) if topology.bandwidth_unit == "link" else max(topology.links.bandwidths)
    table = [8 / (link_mbps * 1e6 * float(bandwidth / full)) for bandwidth in topology.links.bandwidths]
    return [table[index] for index in topology.links.bandwidth_class.tolist()]
