"""Packets in scratch: data with the number of the call that wrote them, for which their readers wait."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from chorale.synth.programs.plans.clocks import HAPPENED, PlanClocks
from chorale.synth.programs.plans.memory import ChunkAccess
from chorale.synth.programs.plans.moves import Stretch

Slot = tuple[int, int, int]
"""Rank, half of its scratch, piece."""


@dataclass(slots=True)
class Packet:
    """What a slot holds: the call, the data, what its writer had done, who wrote it when, and who has read it since."""

    call: int
    identity: int
    members: NDArray[np.uint64]
    told: NDArray[np.int32]
    writer: int
    time: int
    readers: dict[int, int] = field(default_factory=dict)


class PacketSlots:
    """The packets of all ranks."""

    def __init__(self, clocks: PlanClocks, double_scratch: bool, pieces: int) -> None:
        self._clocks, self._pieces = clocks, pieces
        self._halves = 2 if double_scratch else 1
        self._slots: dict[Slot, Packet] = {}

    def slots(self, stretch: Stretch, call: int) -> Iterator[Slot]:
        """Yield the slots of `stretch` in `call`."""
        half = call % self._halves
        return ((stretch.rank, half, stretch.first + piece) for piece in range(stretch.count))

    def missing(self, stretch: Stretch, call: int) -> bool:
        """Return whether a packet of `call` is missing in `stretch`."""
        return any(
            (packet := self._slots.get(slot)) is None or packet.call < call for slot in self.slots(stretch, call)
        )

    def unknown_writer(self, component: int, stretch: Stretch, call: int) -> ChunkAccess | None:
        """Return the write of a packet of `stretch` that is not known to be there; None for none."""
        known = self._clocks.clock[component, HAPPENED]
        packets = ((slot, self._slots[slot]) for slot in self.slots(stretch, call))
        return next((self._write(slot, packet) for slot, packet in packets if known[packet.writer] < packet.time), None)

    def racing(self, component: int, stretch: Stretch, call: int, write: bool) -> ChunkAccess | None:
        """Return the access of who may still use a slot of `stretch` when a block or proxy writes it, or has written it
        again before it is read; None for none."""
        known = self._clocks.clock[component, HAPPENED]
        for slot in self.slots(stretch, call):
            packet = self._slots.get(slot)
            if packet is None:
                continue
            if not write:
                if packet.call > call:
                    return self._write(slot, packet)
                continue
            if packet.call == call or known[packet.writer] < packet.time:
                return self._write(slot, packet)
            unknown = [reader for reader, time in packet.readers.items() if known[reader] < time]
            if unknown:
                return self._access(unknown[0], packet.readers[unknown[0]], slot)
        return None

    def _write(self, slot: Slot, packet: Packet) -> ChunkAccess:
        return self._access(packet.writer, packet.time, slot)

    def _access(self, component: int, time: int, slot: Slot) -> ChunkAccess:
        return ChunkAccess(component, time, slot[0], "s", slot[2] // self._pieces)

    def take(self, component: int, stretch: Stretch, call: int) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
        """Return what the packets of `stretch` hold; the reader learns what their writers had done."""
        packets = [self._slots[slot] for slot in self.slots(stretch, call)]
        time = self._clocks.time(component)
        known = self._clocks.clock[component, HAPPENED]
        for packet in packets:
            packet.readers[component] = time
            np.maximum(known, packet.told, out=known)
        identity = np.array([packet.identity for packet in packets], dtype=np.int64)
        return identity, np.array([packet.members for packet in packets], dtype=np.uint64)

    def put(
        self, component: int, stretch: Stretch, call: int, data: tuple[NDArray[np.int64], NDArray[np.uint64]]
    ) -> None:
        """Write `data` as packets of `call`."""
        told, time = self._clocks.packet(component), self._clocks.time(component)
        identity, members = data
        for piece, slot in enumerate(self.slots(stretch, call)):
            self._slots[slot] = Packet(call, int(identity[piece]), members[piece].copy(), told, component, time)
