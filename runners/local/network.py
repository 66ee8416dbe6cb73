"""The emulated network of the local runner, as the runner sees it: its program, its links and its paths.

It is a process (native/main.cpp) that all ranks connect to. Every directed link is a clock: bytes come out of it no
earlier than a link of its rate would have delivered them.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path

from chorale.runners.api.connections import Connection, ConnectionPaths, program_connections
from chorale.runners.engine.build import build_native, native_home
from chorale.runners.local.network_target import network_target
from chorale.synth.programs.program import Program
from chorale.synth.topology.topology import Topology


def network_program() -> Path:
    """Return the program of the network, built first where that was not done before. Unavailable without a compiler."""
    return build_native(network_target(), native_home())


class NetworkError(Exception):
    """The network ended; the message says why, as far as it did."""


class NetworkControl:
    """The runner's end of the control socket; the network ends when it is closed.

    Raises NetworkError where the network has ended, TimeoutError at `deadline` (of `time.monotonic()`).
    """

    def __init__(self, stream: socket.socket, topology: Topology) -> None:
        self._stream = stream
        self._text = b""
        self._topology = topology
        self._paths = ConnectionPaths(topology)
        self._known: set[Connection] = set()

    def fileno(self) -> int:
        return self._stream.fileno()

    def start(self, token: bytes, deadline: float) -> None:
        """Wait until ranks can connect, and say what they must show."""
        self._expect("ready", deadline)
        self._command([f"token {token.hex()}"], deadline)

    def load(self, programs: Iterable[Program], link_mbps: float, deadline: float) -> None:
        """Set the pace of all links, and the paths of the connections of `programs`; others stay as they were."""
        paces = seconds_per_byte(self._topology, link_mbps)
        lines = [f"link {link} {seconds * 1e9:.9g} 0" for link, seconds in enumerate(paces)]
        missing = {end for program in programs for end in program_connections(program)} - self._known
        self._command([*lines, *self._path_lines(sorted(missing))], deadline)
        self._known |= missing

    def error(self) -> str:
        """Return why the network ended, as far as it says."""
        self._stream.setblocking(False)
        try:
            self._text += self._stream.recv(65536)
        except OSError:
            return "it gave no reason"
        lines = self._text.decode(errors="replace").splitlines()
        return next((line.removeprefix("error ") for line in lines if line.startswith("error ")), "it gave no reason")

    def close(self) -> None:
        self._stream.close()

    def _path_lines(self, connections: Iterable[Connection]) -> Iterator[str]:
        for connection in connections:
            if links := self._paths.path(connection):
                yield " ".join(map(str, ("path", *connection, *links)))

    def _command(self, lines: Sequence[str], deadline: float) -> None:
        self._limit(deadline)
        try:
            self._stream.sendall("".join(f"{line}\n" for line in (*lines, "done")).encode())
        except TimeoutError:
            raise
        except OSError:
            raise NetworkError(self.error()) from None
        self._expect("done", deadline)

    def _expect(self, word: str, deadline: float) -> None:
        while b"\n" not in self._text:
            self._limit(deadline)
            received = self._stream.recv(65536)
            if not received:
                raise NetworkError("it gave no reason")
            self._text += received
        line, self._text = self._text.split(b"\n", 1)
        if line.decode(errors="replace") != word:
            raise NetworkError(line.decode(errors="replace").removeprefix("error "))

    def _limit(self, deadline: float) -> None:
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            raise TimeoutError
        self._stream.settimeout(remaining)


def seconds_per_byte(topology: Topology, link_mbps: float) -> list[float]:
    """Return the pace of every link.

    `link_mbps` is the rate of a link of bandwidth 1 where the unit is links, else of the fastest link: GB/s
    fabrics run as scale models with the right proportions.
    """
    full = Fraction(1) if topology.bandwidth_unit == "link" else max(topology.links.bandwidths)
    table = [8 / (link_mbps * 1e6 * float(bandwidth / full)) for bandwidth in topology.links.bandwidths]
    return [table[index] for index in topology.links.bandwidth_class.tolist()]
