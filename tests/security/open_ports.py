"""The TCP ports on which a process and its descendants listen."""

import ipaddress
from contextlib import suppress

import psutil


def open_ports(pid: int | None = None) -> dict[int, bool]:
    """Return each port of process `pid` (default: this one) -> whether only this machine reaches it."""
    root, ports = psutil.Process(pid), dict[int, bool]()
    for process in [root, *root.children(recursive=True)]:
        with suppress(psutil.Error, OSError):
            for each in process.net_connections("tcp"):
                if each.status == psutil.CONN_LISTEN:
                    is_local = ipaddress.ip_address(each.laddr.ip.removeprefix("::ffff:")).is_loopback
                    ports[each.laddr.port] = is_local and ports.get(each.laddr.port, True)
    return ports
