"""Reads the state of an emulated fabric's links from the kernel: up or down, rate, and number of bytes carried.

`python -m chorale.runners.fabric.link_states` starts a process that enters the nodes' network namespaces. The process
reads a line of JSON with the links, then periodically writes a line with `[rate, bytes]` for every link. The rate comes
from the link's tbf queue; it is 0 if the link is down, and null if the link has no such queue. The process ends when
its input ends.
"""

import fcntl
import json
import os
import select
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from chorale.runners.api.link_reports import Link, LinkReport, steady_unix_s
from chorale.runners.fabric.fabric import EmulatedFabric
from chorale.runners.fabric.namespaces import enter_namespaces
from chorale.runners.fabric.plan import device_name, plan_fabric
from chorale.synth.errors import Unavailable
from chorale.synth.topology.topology import Topology

_START_LIMIT_S, _END_LIMIT_S = 60.0, 5.0
_READ_BYTES = 1 << 18

_SIOCGIFFLAGS, _SIOCGIFINDEX = 0x8913, 0x8933
_UP_AND_RUNNING = 0x1 | 0x40
_RTM_GETQDISC, _NLMSG_DONE = 38, 3
_REQUEST_DUMP = 0x1 | 0x300
_TCMSG = struct.Struct("=BxxxiIII")  # family, index of the device, handle, parent, info
_ROOT = 0xFFFFFFFF
_TCA_KIND, _TCA_OPTIONS, _TBF_PARAMETERS = 1, 2, 1


class KernelLinks:
    """Reports the state of the links between neighbouring ranks in `fabric`; implements `LinkSource`.

    Links to switches are left out, because a `LinkSource` reports links between ranks only.

    period_s: interval at which the state of all links is read
    """

    def __init__(self, topology: Topology, fabric: EmulatedFabric, period_s: float = 0.25) -> None:
        """Start the process. Raises Unavailable if it cannot start."""
        plan = plan_fabric(topology, fabric.link_mbps, fabric.name)
        self.declared_bits_per_s: Mapping[Link, float] = {
            arc: float(rate)
            for cable in plan.cables
            for arc, rate in zip(cable.arcs, cable.bits_per_s, strict=True)
            if rate and max(arc) < topology.compute_count
        }
        self._links = tuple(sorted(self.declared_bits_per_s))
        folder = f"/proc/{fabric.pid}/root/run/netns"
        task = {
            "user": [f"/proc/{fabric.pid}/ns/user"] if fabric.in_user_namespace and os.geteuid() != 0 else [],
            "networks": [f"{folder}/{fabric.hostname(rank)}" for rank in range(fabric.ranks)],
            "links": [[src, device_name(dst)] for src, dst in self._links],
            "period_s": period_s,
        }
        pipe = subprocess.PIPE
        command = [sys.executable, "-P", "-m", "chorale.runners.fabric.link_states"]
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe)  # noqa: S603 - our own module
        self._text = b""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(task).encode() + b"\n")
        self._process.stdin.flush()
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], _START_LIMIT_S)[0]:
            raise self._ended()

    def reports(self, limit_s: float) -> Iterator[LinkReport]:
        """Yield new reports; see `LinkSource.reports`. Raises Unavailable if the process has ended."""
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], limit_s)[0]:
            return
        chunk = os.read(self._process.stdout.fileno(), _READ_BYTES)
        if not chunk:
            raise self._ended()
        *lines, self._text = (self._text + chunk).split(b"\n")
        now_s = steady_unix_s()
        for line in lines[-1:]:
            for link, (rate, carried) in zip(self._links, json.loads(line), strict=True):
                declared = self.declared_bits_per_s[link]
                yield LinkReport(link, now_s, declared if rate is None else min(rate, declared), carried)

    def close(self) -> None:
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()
        try:
            self._process.wait(_END_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()

    def _ended(self) -> Unavailable:
        self._process.kill()
        _, words = self._process.communicate()
        reason = (words or b"").decode(errors="replace").strip().rsplit("\n", 1)[-1] or "it ended"
        way_out = "it needs the same permissions as fabrics: see `chorale doctor`"
        return Unavailable("the process that reads the links has ended: {}", reason, way_out)


class _Node:
    """Queries a node's network devices over sockets, which still work after the process has left its namespace."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
        self._counters = os.open("/proc/thread-self/net/dev", os.O_RDONLY)
        self._limits: dict[int, float] = {}

    def look(self) -> Mapping[str, int | None]:
        """Return the bytes sent so far by each device. Also update the rates that `limit` returns."""
        self._limits = {}
        header = struct.pack("=IHHII", 16 + _TCMSG.size, _RTM_GETQDISC, _REQUEST_DUMP, 1, 0)
        self._netlink.send(header + _TCMSG.pack(0, 0, 0, 0, 0))
        is_done = False
        while not is_done:
            data = self._netlink.recv(_READ_BYTES)
            while data and not is_done:
                length, kind = struct.unpack_from("=IH", data)
                is_done = kind == _NLMSG_DONE
                if not is_done:
                    _, index, _, parent, _ = _TCMSG.unpack_from(data, 16)
                    found = _attributes(data[16 + _TCMSG.size : length])
                    if parent == _ROOT and found.get(_TCA_KIND, b"").rstrip(b"\0") == b"tbf":
                        parameters = _attributes(found[_TCA_OPTIONS])[_TBF_PARAMETERS]
                        self._limits[index] = 8.0 * int(struct.unpack_from("=8xI", parameters)[0])
                data = data[(length + 3) & ~3 :]
        text = b""
        while part := os.pread(self._counters, _READ_BYTES, len(text)):
            text += part
        rows = (line.split(":", 1) for line in text.decode().split("\n") if ":" in line)
        return {name.strip(): int(numbers.split()[8]) for name, numbers in rows}

    def limit(self, device: str) -> float | None:
        """Return a device's rate limit in bits per second: 0 if the device is down, None if there is no limit."""
        request = struct.pack("16sH22x", device.encode(), 0)
        flags = struct.unpack_from("H", fcntl.ioctl(self._socket, _SIOCGIFFLAGS, request), 16)[0]
        if flags & _UP_AND_RUNNING != _UP_AND_RUNNING:
            return 0.0
        return self._limits.get(struct.unpack_from("i", fcntl.ioctl(self._socket, _SIOCGIFINDEX, request), 16)[0])


def _attributes(data: bytes) -> dict[int, bytes]:
    found = {}
    while len(data) >= 4:
        length, kind = struct.unpack_from("=HH", data)
        found[kind & 0x3FFF] = data[4:length]
        data = data[max((length + 3) & ~3, 4) :]
    return found


def main() -> None:
    task: dict[str, Any] = json.loads(sys.stdin.buffer.readline())
    nodes = []
    for number, path in enumerate(task["networks"]):
        enter_namespaces([*(task["user"] if number == 0 else []), path])
        nodes.append(_Node())
    while True:
        carried = [node.look() for node in nodes]
        looks = [(nodes[src].limit(device), carried[src].get(device)) for src, device in task["links"]]
        sys.stdout.write(json.dumps(looks) + "\n")
        sys.stdout.flush()
        if select.select([sys.stdin], [], [], task["period_s"])[0]:
            return


if __name__ == "__main__":
    main()
