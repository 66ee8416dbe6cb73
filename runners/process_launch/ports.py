"""Which TCP ports processes listen on, and who reaches them: read from /proc, so on Linux only."""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_LISTENING = "0A"
_PROC = Path("/proc")
MAX_NAME = 60


@dataclass(frozen=True, slots=True, order=True)
class OpenPort:
    """A port that a process listens on. `address` is that of the interface, or `0.0.0.0` or `::` for all of them."""

    port: int
    address: str
    pid: int
    process: str

    @property
    def is_local(self) -> bool:
        """Whether this machine alone reaches it."""
        address = ipaddress.ip_address(self.address)
        mapped = getattr(address, "ipv4_mapped", None)
        return (mapped or address).is_loopback

    @property
    def reached_by(self) -> str:
        """Who reaches the port, for people."""
        if self.is_local:
            return "users of this machine"
        if ipaddress.ip_address(self.address).is_unspecified:
            return "every network of this machine"
        return f"who reaches {self.address}"


def open_ports(root_pid: int | None = None) -> list[OpenPort]:
    """Return the ports of the process `root_pid` (default: this one) and all of its descendants, in order."""
    listening = _listening_sockets()
    ports = set()
    for pid in _family(os.getpid() if root_pid is None else root_pid):
        for inode in _sockets_of(pid) & listening.keys():
            address, port = listening[inode]
            ports.add(OpenPort(port, address, pid, _name(pid)))
    return sorted(ports)


def port_lines(root_pid: int | None = None) -> list[str]:
    """Return a line for people per port of `open_ports`; a port that several processes share is one line."""
    rows = {(port.port, port.address): port for port in reversed(open_ports(root_pid))}
    return [f"{row.address} port {row.port}: {row.reached_by} ({row.process})" for _, row in sorted(rows.items())]


def _listening_sockets() -> dict[int, tuple[str, int]]:
    """Return address and port of the listening sockets of this machine, by the numbers of their sockets."""
    sockets = {}
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in (_PROC / "net" / table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENING:
                    address, _, port = fields[1].partition(":")
                    sockets[int(fields[9])] = _address(address), int(port, 16)
    return sockets


def _address(words: str) -> str:
    """Return the address that the system writes as words of 32 bits in its own order of bytes."""
    packed = b"".join(struct.pack("=I", int(words[at : at + 8], 16)) for at in range(0, len(words), 8))
    return socket.inet_ntop(socket.AF_INET if len(packed) == 4 else socket.AF_INET6, packed)


def _family(root_pid: int) -> list[int]:
    """Return a process and its descendants."""
    parents = dict(_parents())
    family = {root_pid}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return sorted(family)


def _parents() -> Iterator[tuple[int, int]]:
    for folder in _PROC.iterdir():
        if folder.name.isdigit():
            with suppress(OSError):  # it ended meanwhile
                status = (folder / "stat").read_text()
                yield int(folder.name), int(status.rpartition(")")[2].split()[1])


def _sockets_of(pid: int) -> set[int]:
    """Return the sockets of a process; none if it ended or belongs to somebody else."""
    inodes = set()
    with suppress(OSError):
        for descriptor in (_PROC / str(pid) / "fd").iterdir():
            with suppress(OSError):
                target = os.readlink(descriptor)
                if target.startswith("socket:["):
                    inodes.add(int(target[len("socket:[") : -1]))
    return inodes


def _name(pid: int) -> str:
    """Return what a process calls itself, without its arguments, which may be long."""
    with suppress(OSError):
        words = (_PROC / str(pid) / "cmdline").read_bytes().rstrip(b"\0 ").split(b"\0")
        first = words[0].decode(errors="replace")
        name = first if first.startswith("ray::") else Path(first).name
        module = [word.decode(errors="replace") for word in words[1:3] if word[:1] != b"-"]
        return " ".join([name, *[Path(word).name for word in module[:1]]])[:MAX_NAME]
    return "a process that ended"
