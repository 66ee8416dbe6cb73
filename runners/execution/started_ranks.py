"""Controls rank processes that are started one by one or by a launcher and then connect to the runner over a socket."""

import contextlib
import os
import secrets
import select
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from chorale.runners.api.base import FailureKind
from chorale.runners.execution.rank_part import FramedSocket, Message
from chorale.runners.execution.rounds import DeadlinePassed, RunStopped, SocketRanks
from chorale.runners.measurement.clocks import SAME_CLOCK, ClockOffset, ClockSample, clock_identity, clock_offset
from chorale.runners.process_launch.processes import STDERR, ProcessHandle
from chorale.runners.process_launch.slurm import RankHost, this_host
from chorale.synth.errors import Unavailable

_LOOK_S = 0.1  # interval for checking whether a rank has died before its hello
_HELLO_S = 5.0  # time limit from the first to the last byte of a hello
_CLOCK_SAMPLES = 20
_SETTLE_S = 0.3  # time until killed ranks can be distinguished from ranks that only lost a neighbour
TOKEN = "CHORALE_TOKEN"  # noqa: S105 - a variable's name
"""Environment variable with the token by which the runner recognizes its ranks."""

Start = Callable[[str, Mapping[str, str]], Sequence[ProcessHandle]]
"""Function that starts all ranks. Arguments: the runner's address, environment variables. Returns the processes that it
started: one per rank, or a single launcher."""


class StartedRanks(SocketRanks):
    """Starts all rank processes, waits until they connect, and controls them.

    address: this process's address for ranks on other machines; if empty, all ranks are on this machine and connect
             through a Unix socket
    release: function that frees the hosts, called at the end
    hellos:  each rank's first message, with rank, pid and clock
    """

    def __init__(
        self, ranks: int, address: str, start: Start, deadline: float, release: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(ranks)
        self._release, self._started = release, list[ProcessHandle]()
        self.hellos: dict[int, Message] = {}
        self._folder = "" if address else tempfile.mkdtemp(prefix="chorale-ranks-")
        self._listener = socket.socket(socket.AF_INET if address else socket.AF_UNIX)
        try:
            self._listener.bind(("", 0) if address else f"{self._folder}/ranks")
            self._listener.listen(ranks)
            port = self._listener.getsockname()[1]
            token = secrets.token_hex(16)
            meeting = f"{address}:{port}" if address else f"{self._folder}/ranks"
            self._started.extend(start(meeting, {TOKEN: token}))
            self._meet(token, deadline)
        except BaseException:
            self.close()
            raise

    def _meet(self, token: str, deadline: float) -> None:
        """Wait until every rank has sent its first message (hello). Connections without the token are closed.

        A rank may connect long before it sends its hello, because it creates its device in between.
        """
        said: dict[int, FramedSocket] = {}
        while len(said) < len(self.ranks):
            if time.monotonic() > deadline:
                raise DeadlinePassed("the ranks were started")
            waiting = [channel for channel in self._channels if channel not in said.values()]
            sources: list[socket.socket | FramedSocket] = [self._listener, *waiting]
            readable = select.select(sources, (), (), _LOOK_S)[0]
            if not readable and any(started.poll() is not None for started in self._started):
                raise self._death()
            if self._listener in readable:
                self._channels.append(FramedSocket(self._listener.accept()[0]))
            for channel in [each for each in waiting if each in readable]:
                hello = None
                with contextlib.suppress(OSError, ValueError):
                    hello = channel.receive(min(deadline, time.monotonic() + _HELLO_S))
                if hello is None or not secrets.compare_digest(str(hello.get("token", "")), token):
                    self._channels.remove(channel)
                    channel.close()
                else:
                    said[hello["rank"]], self.hellos[hello["rank"]] = channel, hello
        self._channels = [said[rank] for rank in self.ranks]
        self.pids = [self.hellos[rank]["pid"] for rank in self.ranks]
        if self._folder:
            Path(self._folder, "ranks").unlink()
            with contextlib.suppress(OSError):  # kept if ranks have files in it; an empty one would survive a kill
                os.rmdir(self._folder)

    @property
    def hosts(self) -> dict[int, RankHost]:
        """Return the host that each rank reports."""
        return {rank: RankHost.of_words(self.hellos[rank]["host"]) for rank in self.ranks}

    def _clock_offsets(self, deadline: float) -> Mapping[int, ClockOffset]:
        own, offsets = clock_identity(), dict[int, ClockOffset]()
        for rank in self.ranks:
            if self.hellos[rank]["clock"] == own:
                offsets[rank] = SAME_CLOCK
                continue
            samples = []
            for _ in range(_CLOCK_SAMPLES):
                asked_s = time.monotonic()
                try:
                    self._channels[rank].send({"do": "clock"}, deadline)
                except OSError:
                    raise self._death() from None
                remote_s = float(self._read(rank, deadline)["time"])
                samples.append(ClockSample(asked_s, remote_s, time.monotonic()))
            offsets[rank] = clock_offset(samples)
        return offsets

    def _refusal(self, rank: int, message: str) -> RunStopped:
        """Return the failure for `rank`'s error. If a rank was killed, its death is reported as the cause, because
        ranks that lose another rank give up with an error.
        """
        if (kind := self._kind_of(message)) is not FailureKind.CRASH:
            return RunStopped(kind, f"rank {rank} failed: {message}", rank)
        return self._death(f"rank {rank} failed: {message}", rank)

    def _kind_of(self, reason: str) -> FailureKind:
        """Return the kind of failure that a rank reports with `reason`, its last message."""
        return FailureKind.CRASH

    def _death(self, otherwise: str = "a rank ended without a reason", rank: int | None = None) -> RunStopped:
        """Return the failure for a rank's death. If a rank was killed by a signal, the failure names this rank, because
        ranks that lose another rank end too.

        otherwise, rank: message and rank to report if no process has ended
        """
        time.sleep(_SETTLE_S)
        has_each = len(self._started) == len(self.ranks)
        codes = [(number, code) for number, one in enumerate(self._started) if (code := one.poll()) is not None]
        for number, code in codes if has_each else ():
            if code < 0 and code != -signal.SIGABRT:
                return RunStopped(
                    FailureKind.CRASH, f"rank {number} was killed by {signal.Signals(-code).name}", number
                )
        if rank is None and codes:
            number, code = codes[0]
            lines = self._started[number].read(STDERR).decode(errors="replace").strip().splitlines()
            reason = " ".join(lines[-1].split()) if lines else "no reason given"
            who = f"rank {number}" if has_each else "the launcher"
            return RunStopped(
                self._kind_of(reason), f"{who} ended with code {code}: {reason}", number if has_each else None
            )
        return RunStopped(self._kind_of(otherwise), otherwise, rank)

    def close(self, gracefully: bool = True) -> None:
        """Kill all processes, because some may be in library calls that wait for lost ranks. Safe to call twice."""
        for channel in self._channels:
            channel.close()
        self._listener.close()
        for started in self._started:
            started.kill()
        for started in self._started:
            started.close()
        self._started.clear()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
        with contextlib.suppress(Unavailable):
            self._release()


class StreamRanks(StartedRanks):
    """Controls ranks that time several consecutive calls themselves, with the clock of their device's stream."""

    def timed_start(self, deadline: float, doing: str) -> float:
        """Start the prepared calls; return the slowest rank's mean time per call."""
        self.send({"do": "go", "at": 0.0, "limit_s": max(0.0, deadline - time.monotonic())}, deadline)
        return max(float(answer["seconds"]) for answer in self.receive(deadline, doing).values())


def greet_runner(control: FramedSocket, rank: int, **facts: Any) -> None:
    """Send `rank`'s first message to the runner: its token, process id, clock and host, and `facts`."""
    host = this_host()
    hello = {"answer": "hello", "rank": rank, "token": os.environ[TOKEN], "pid": os.getpid()}
    hello |= {"clock": clock_identity(), "host": [host.name, *sorted(host.aliases - {host.name})]}
    control.send({**hello, **facts})


def meet_runner(meeting: str) -> FramedSocket:
    """Connect a rank to its runner and return the socket. `meeting` is HOST:PORT or the path of a Unix socket."""
    host, _, port = meeting.rpartition(":")
    if host:
        stream = socket.create_connection((host, int(port)))
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    else:
        stream = socket.socket(socket.AF_UNIX)
        stream.connect(meeting)
    return FramedSocket(stream)
