"""How often something may fail for each client in a minute, counted in bounded memory."""

from __future__ import annotations

import ipaddress
import threading
from collections import OrderedDict
from collections.abc import Callable

WINDOW_S = 60.0
MOST_FAILURES = 20
MOST_CLIENTS = 4096
IPV6_NETWORK = 64
"""Bits of an IPv6 address that name a customer, who has all addresses below them."""


class FailureThrottle:
    """Counts failures of clients, each in windows of a minute. Thread-safe; of many the oldest are forgotten."""

    def __init__(self, unix_s: Callable[[], float], most: int = MOST_FAILURES, clients: int = MOST_CLIENTS) -> None:
        self.most = most
        self._unix_s = unix_s
        self._clients = clients
        self._counts: OrderedDict[str, tuple[float, int]] = OrderedDict()  # by client: start of the window, failures
        self._lock = threading.Lock()

    def admits(self, client: str) -> bool:
        """Count a failure of `client`; return False if it has had too many in this window."""
        now_s, name = self._unix_s(), network_of_client(client)
        with self._lock:
            started_s, count = self._counts.pop(name, (now_s, 0))
            if now_s - started_s >= WINDOW_S:
                started_s, count = now_s, 0
            self._counts[name] = (started_s, count + 1)
            while len(self._counts) > self._clients:
                self._counts.popitem(last=False)
        return count < self.most


def network_of_client(client: str) -> str:
    """Return what stands for a client: its IPv4 address, or the network of its IPv6 address."""
    try:
        address = ipaddress.ip_address(client)
    except ValueError:
        return client[:64]
    if address.version == 4:
        return str(address)
    return str(ipaddress.ip_network((address, IPV6_NETWORK), strict=False))
