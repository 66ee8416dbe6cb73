"""Probes of the links of an emulated fabric, sent by a process in the networks of its nodes."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from chorale.runners.api.probes import Link, ProbeOutcome
from chorale.runners.fabric.fabric import EmulatedFabric
from chorale.runners.fabric.link_probe import IP_UDP_BYTES
from chorale.runners.fabric.plan import device_name, rank_address
from chorale.synth.errors import Unavailable
from chorale.synth.topology.topology import Topology

_START_LIMIT_S = 60.0
_END_LIMIT_S = 5.0
_LEAST_QUEUED = 2
"""As many times as long as they took to send must packets take to arrive. Else others may be queued between them, and
the rate is that of the sender, who may have waited for a processor."""


@dataclass(frozen=True, slots=True)
class ProbeOptions:
    """limit_s: of silence on a link after which a packet is lost"""

    limit_s: float = 1.0


class FabricProber:
    """Probes links between neighbouring ranks of `fabric`; see `chorale.runners.api.probes.Prober`.

    Links to switches and from them are not probed: an emulated switch has no address. Close it at the end.
    """

    def __init__(self, topology: Topology, fabric: EmulatedFabric, options: ProbeOptions | None = None) -> None:
        """Raises Unavailable where the process cannot start."""
        options = options or ProbeOptions()
        ranks = topology.compute_count
        pairs = zip(topology.links.src.tolist(), topology.links.dst.tolist(), strict=True)
        self.links: tuple[Link, ...] = tuple(sorted({p for p in pairs if max(p) < ranks and p[0] != p[1]}))
        self.packet_bytes = fabric.links.mtu_bytes
        self._numbers = {link: number for number, link in enumerate(self.links)}
        task = {
            "namespaces": _namespaces(fabric),
            "links": [[src, dst, device_name(dst), rank_address(dst)] for src, dst in self.links],
            "payload_bytes": self.packet_bytes - IP_UDP_BYTES,
            "limit_s": options.limit_s,
        }
        command = [sys.executable, "-m", "chorale.runners.fabric.link_probe"]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe)  # noqa: S603 - our own module
        self._text = b""
        self._carried: Mapping[Link, int] = {}
        self._write(json.dumps(task))
        self._output = selectors.DefaultSelector()
        self._output.register(self._stdout, selectors.EVENT_READ)
        if next(iter(self._documents(_START_LIMIT_S)), None) != {"ready": True}:
            raise self._ended()

    @property
    def pid(self) -> int:
        """The process that probes."""
        return self._process.pid

    def send(self, link: Link, packets: int) -> None:
        """See Prober. Unavailable if the process has ended."""
        self._write(f"[{self._numbers[link]}, {packets}]")

    def receive(self, limit_s: float) -> Iterator[ProbeOutcome]:
        """See Prober. Unavailable if the process has ended."""
        for document in self._documents(limit_s):
            if "carried" in document:
                counts = zip(self.links, document["carried"], strict=True)
                self._carried = {link: count for link, count in counts if count is not None}
                continue
            sent_s = document["sent_ns"] / 1e9
            first, last = document["first_ns"], document["last_ns"]
            rate = None
            if first is not None and last - first > _LEAST_QUEUED * document["sending_ns"]:
                rate = (document["packets"] - 1) * self.packet_bytes * 8e9 / (last - first)
            latency_s = None if first is None else first / 1e9 - sent_s
            link = self.links[document["link"]]
            yield ProbeOutcome(link, document["packets"], sent_s, document["arrived"], rate, latency_s)

    def carried_bytes(self) -> Mapping[Link, int]:
        """See Prober. Unavailable if the process has ended."""
        self._write('"carried"')
        return self._carried

    def close(self) -> None:
        """End the process. Safe to call twice."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()
        try:
            self._process.wait(_END_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._output.close()
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()

    @property
    def _stdout(self) -> int:
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
        except (BrokenPipeError, ValueError) as error:
            raise self._ended() from error

    def _documents(self, limit_s: float) -> Iterator[dict[str, Any]]:
        if not self._output.select(limit_s):
            return
        chunk = os.read(self._stdout, 1 << 16)
        if not chunk:
            raise self._ended()
        *lines, self._text = (self._text + chunk).split(b"\n")
        yield from map(json.loads, lines)

    def _ended(self) -> Unavailable:
        self._process.kill()
        _, words = self._process.communicate()
        reason = (words or b"").decode(errors="replace").strip().rsplit("\n", 1)[-1] or "it ended"
        way_out = "probing wants the rights that fabrics want: see `chorale doctor`"
        return Unavailable("the process that probes links must run", reason, way_out)


def _namespaces(fabric: EmulatedFabric) -> list[list[str]]:
    """Return the files of each rank's network; a user's namespace first, which root needs not."""
    user = [f"/proc/{fabric.pid}/ns/user"] if fabric.in_user_namespace and os.geteuid() != 0 else []
    folder = f"/proc/{fabric.pid}/root/run/netns"
    return [[*user, f"{folder}/{fabric.hostname(rank)}"] for rank in range(fabric.ranks)]
