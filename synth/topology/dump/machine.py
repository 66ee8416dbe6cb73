"""What a topology dump says about one machine."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, NamedTuple

WireKind = Literal["gpu", "nvswitch", "cpu"]


class Wire(NamedTuple):
    """NVLinks, xGMI or chip-to-chip links of a GPU, one way where they lead to a GPU: `target` is its bus id."""

    kind: WireKind
    target: str
    bandwidth: Fraction


@dataclass(frozen=True, slots=True)
class HostSwitch:
    """A CPU (without `parent`) or a PCI switch; `bandwidth` leads to the parent, from a CPU to each other CPU.

    `parent` is a position in the machine's list of host switches, always an earlier one.
    """

    name: str
    parent: int | None
    bandwidth: Fraction


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU at PCI address `bus`, linked with host switch `host`."""

    rank: int
    bus: str
    host: int
    pci: Fraction
    wires: tuple[Wire, ...]


@dataclass(frozen=True, slots=True)
class Nic:
    """A port of a NIC, linked with host switch `host`; `speed` is None where the dump does not tell."""

    number: int
    host: int
    pci: Fraction
    speed: Fraction | None

    @property
    def bandwidth(self) -> Fraction:
        """What gets through both its PCI link and its port."""
        return self.pci if self.speed is None else min(self.pci, self.speed)


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine: GPUs in rank order, NICs in the order of their numbers, bandwidths in GB/s.

    `only_places` says that the file places devices on PCI without describing GPUs, so that their links are unknown.
    """

    gpus: tuple[Gpu, ...]
    nics: tuple[Nic, ...]
    hosts: tuple[HostSwitch, ...]
    positions_only: bool

    @property
    def cpus(self) -> list[int]:
        """Positions of the CPUs among the host switches."""
        return [index for index, host in enumerate(self.hosts) if host.parent is None]

    def path_to_cpu(self, host: int) -> list[int]:
        """Return the host switches from `host` up to its CPU."""
        way = [host]
        while (parent := self.hosts[way[-1]].parent) is not None:
            way.append(parent)
        return way

    def path_between(self, first: int, second: int) -> tuple[int, Fraction | None]:
        """Return the number of links between two host switches and the narrowest of them, None for no link."""
        left, right = self.path_to_cpu(first), self.path_to_cpu(second)
        while left and right and left[-1] == right[-1]:
            left.pop()
            right.pop()
        crossed = [*left, *right]  # each leads to its parent; two CPUs stand for the one link between them
        links = len(crossed) - sum(self.hosts[host].parent is None for host in crossed) // 2
        return links, min((self.hosts[host].bandwidth for host in crossed), default=None)
