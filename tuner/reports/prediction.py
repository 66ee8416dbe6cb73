"""What a program is predicted to take, as `chorale lower` and `chorale lift` report it."""

from __future__ import annotations

from typing import Any

from chorale.synth.identity import rational_text
from chorale.synth.kernels.warm_up import warm_simulation
from chorale.synth.targets.lift import LiftResult
from chorale.synth.topology.topology import Topology
from chorale.tuner.costs.pricing import DEFAULTS, Pricing
from chorale.tuner.costs.program_costs import program_time_per_byte, simulate_program, usual_buffer_bytes


def prediction(
    reading: LiftResult, topology: Topology, size_bytes: int | None, link_gbps: str | None
) -> dict[str, Any] | None:
    """Return the exact least time per byte and, given a size, the time that a simulation says; None for wrong
    programs.

    InvalidInput if a size is given and the rate of a link is not known.
    """
    program = reading.program
    if reading.violations:
        return None
    time_us = None
    if size_bytes is not None:
        network = Pricing.of({**dict.fromkeys(DEFAULTS), "link_gbps": link_gbps}, None).network(topology)
        warm_simulation()
        time_us = simulate_program(program, topology, network, size_bytes, usual_buffer_bytes(program)).end_s * 1e6
    time_per_byte = rational_text(program_time_per_byte(program, topology))
    return {"time_per_byte": time_per_byte, "size_bytes": size_bytes, "time_us": time_us}
