"""Latencies of the operations of plans, by the kind of channel."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

from chorale.synth.programs.plans.plan import Action, Operation
from chorale.synth.programs.postconditions import AnyProgram
from chorale.synth.simulation.network_model import NetworkModel


@dataclass(frozen=True, slots=True)
class PlanPrices:
    """Seconds beside what bytes take on the links.

    packets, port_packets: until packets are seen that threads, or a port, have written
    put:                   until chunks have arrived that threads have written
    read:                  until a read, or what a switch does, answers: the way there and back
    signal, relaxed:       until a signal over memory is seen, with the order of memory that it makes, or without
    port:                  until a signal through a port is seen, or a put with it
    launch, packet_launch: of a call, with signals or with packets

    The defaults are latencies that NCCL 2.27 counts per step (src/graph/tuning.cc): LL 0.6 us on NVLink and 2.7 us on
    the network, Simple 3.4 us and 14 us, and 6.6 us or 8.4 us at the start; reads as two ways of LL. They rank kinds of
    plans and have not been measured with MSCCL++.
    """

    packets: float = 0.6e-6
    port_packets: float = 2.7e-6
    put: float = 0.6e-6
    read: float = 1.2e-6
    signal: float = 2.8e-6
    relaxed: float = 0.6e-6
    port: float = 14e-6
    launch: float = 8.4e-6
    packet_launch: float = 6.6e-6

    def of_move(self, operation: Operation) -> float:
        """Return the latency of what `operation` moves between ranks."""
        if operation.kind == "port":
            if operation.action.packets:
                return self.port_packets
            return self.port if operation.action.signals else self.put
        if operation.action.packets:
            return self.packets
        reads = any(each.remote is not None or each.switch is not None for each in operation.sources)
        return self.read if reads or operation.kind == "switch" else self.put

    def of_signal(self, operation: Operation) -> float:
        """Return the latency of a signal; that of a put with signal is the put's own."""
        if operation.action.moves:
            return 0.0
        if operation.kind == "port":
            return self.port
        return self.relaxed if operation.action is Action.RELAXED_SIGNAL else self.signal

    def of_call(self, packets: bool) -> float:
        """Return what a call takes before anything moves."""
        return self.packet_launch if packets else self.launch


NCCL_LATENCIES = PlanPrices()
FREE = PlanPrices(*(0.0,) * 9)


def priced(program: AnyProgram, model: NetworkModel) -> tuple[PlanPrices, NetworkModel]:
    """Return what operations of `program` take, and what messages do on links: of plans, where `model` has no alpha,
    the latencies of kinds of operations take the place of those of links."""
    if not program.one_sided or model.alpha_s:
        return FREE, model
    return NCCL_LATENCIES, replace(model, link_latency_s=Fraction(0), hop_s=Fraction(0))
