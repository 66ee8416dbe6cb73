"""How engines find one another: each says where it listens, and takes for every other the nearest way."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Sequence
from pathlib import Path

import psutil

from chorale.runners.engine.library import Engine
from chorale.synth.errors import InvalidInput

TOKEN_BYTES = 16
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NETWORK = Path("/proc/self/ns/net")


def listen(engine: Engine, interface: str | None = None) -> list[str]:
    """Have `engine` listen; return what the others must know: this network of this machine, and two addresses in it.

    interface: the device by which others reach this rank; by default the first that is up and not loopback

    Raises InvalidInput for a device that is not there, EngineError where the engine cannot listen.
    """
    name = f"shm:chorale-{os.getpid()}-{secrets.token_hex(8)}"
    return [_network_id(), engine.listen(name), engine.listen(f"tcp:{own_address(interface)}")]


def addresses_for(said: Sequence[str], of_all: Sequence[Sequence[str]]) -> list[str]:
    """Return for each rank the address at which the one that said `said` reaches it: by shared memory where it can."""
    return [shared if network == said[0] else tcp for network, shared, tcp in of_all]


def own_address(interface: str | None = None) -> str:
    """Return the IPv4 address of `interface`, by default of the first that is up and not loopback, else loopback."""
    usable = {name for name, state in psutil.net_if_stats().items() if state.isup}
    addresses = {
        name: entry.address
        for name, entries in psutil.net_if_addrs().items()
        for entry in entries
        if entry.family == socket.AF_INET and name in usable
    }
    if interface is not None and interface not in addresses:
        known = ", ".join(sorted(addresses)) or "none"
        raise InvalidInput("a network device must be up and have an IPv4 address", interface, f"choose from {known}")
    outside = [address for address in addresses.values() if not address.startswith("127.")]
    return addresses[interface] if interface is not None else next(iter(outside), "127.0.0.1")


def _network_id() -> str:
    """Return the same on two ranks if they can share memory and do so without leaving an emulated network."""
    return f"{_BOOT_ID.read_text().strip()} {os.readlink(_NETWORK)}"
