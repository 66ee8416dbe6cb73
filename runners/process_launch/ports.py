"""Find the TCP ports on which processes listen, and who can reach them."""

import ipaddress
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

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
    """Return a line for people per port in `open_ports`; a port that several processes share has one line."""
    rows = {(port.port, port.address): port for port in reversed(open_ports(root_pid))}
    return [f"{row.address} port {row.port}: {row.reached_by} ({row.process})" for _, row in sorted(rows.items())]


def _name(words: list[str]) -> str:
    """Return a process's name without its arguments, which may be long."""
    first = words[0] if words else "a process that ended"
    name = first if first.startswith("ray::") else Path(first).name
    module = [Path(word).name for word in words[1:3] if word[:1] != "-"][:1]
    return " ".join([name, *module])[:MAX_NAME]
