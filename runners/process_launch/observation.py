"""Observes processes: the memory that they use, and the TCP ports on which they listen and who can reach them."""

import ipaddress
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

LOOK_S = 0.05
"""Seconds between two measurements of a process, which may exceed a limit by what it allocates in between."""
_PAGE_BYTES = resource.getpagesize()


def resident_bytes(pid: int | str = "self") -> int:
    """Return the private memory that a process uses, in bytes; 0 if it has ended.

    Only pages that were written count. A limit on address space (RLIMIT_DATA) would also count reserved memory that is
    never used, such as thread stacks and malloc arenas. How much is reserved depends on the machine's load, so small
    computations would fail at random.
    """
    try:
        _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_text().split()
    except OSError:
        return 0
    return (int(resident) - int(shared)) * _PAGE_BYTES


@contextmanager
def memory_guard(more_bytes: int, exceeded: Callable[[], None]) -> Iterator[None]:
    """Call `exceeded` in another thread if this process's memory grows by `more_bytes` during the block."""
    limit_bytes, over = resident_bytes() + more_bytes, threading.Event()

    def look() -> None:
        while not over.wait(LOOK_S):
            if resident_bytes() > limit_bytes:
                exceeded()
                return

    threading.Thread(target=look, name="memory-guard", daemon=True).start()
    try:
        yield
    finally:
        over.set()


MAX_NAME = 60


@dataclass(frozen=True, slots=True, order=True)
class OpenPort:
    """A port on which a process listens. address: the interface's address, `0.0.0.0` or `::` for all interfaces"""

    port: int
    address: str
    pid: int
    process: str

    @property
    def is_local(self) -> bool:
        """Return whether only this machine can reach the port."""
        address = ipaddress.ip_address(self.address)
        mapped = getattr(address, "ipv4_mapped", None)
        return (mapped or address).is_loopback

    @property
    def reached_by(self) -> str:
        if self.is_local:
            return "users of this machine"
        if ipaddress.ip_address(self.address).is_unspecified:
            return "every network of this machine"
        return f"everybody who reaches {self.address}"


def open_ports(root_pid: int | None = None) -> list[OpenPort]:
    """Return the ports of the process `root_pid` (default: this one) and all of its descendants, sorted by number.

    Processes that end meanwhile or belong to somebody else are left out.
    """
    root = psutil.Process(root_pid)
    ports = set()
    for process in [root, *root.children(recursive=True)]:
        with suppress(psutil.Error, OSError):
            for connection in process.net_connections("tcp"):
                if connection.status == psutil.CONN_LISTEN:
                    address = connection.laddr
                    ports.add(OpenPort(address.port, address.ip, process.pid, _name(process.cmdline())))
    return sorted(ports)


def port_lines(root_pid: int | None = None) -> list[str]:
    """Return a line of text for each port in `open_ports`; a port that several processes share has one line."""
    rows = {(port.port, port.address): port for port in reversed(open_ports(root_pid))}
    return [f"{row.address} port {row.port}: {row.reached_by} ({row.process})" for _, row in sorted(rows.items())]


def _name(words: list[str]) -> str:
    """Return a process's name without its arguments, which may be long."""
    first = words[0] if words else "a process that ended"
    name = first if first.startswith("ray::") else Path(first).name
    module = [Path(word).name for word in words[1:3] if word[:1] != "-"][:1]
    return " ".join([name, *module])[:MAX_NAME]
