"""What a program costs on a network: exact loads of links, and times by simulation."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from runners.connections import Paths, program_connections
from runners.program_flows import ProgramFlows
from runners.program_trace import ProgramTrace
from runners.simulated import buffer_parts
from synth.errors import CheckFailed, InvalidInput
from synth.lowering.program import Program
from synth.simulation.flow_simulation import simulate_flows
from synth.simulation.network_model import NetworkModel
from synth.topology.topology import Topology

MOST_MESSAGES = 2**22
"""Of a simulated program, all loops together; each takes about a kilobyte and ten microseconds."""
BUFFER_BYTES: Mapping[str, int] = {"msccl-xml": 2**22, "msccl-executor-xml": 2**22}
"""By target: the buffer of a connection that long chunks stream through, as NCCL has it for the Simple protocol."""


def program_loads(program: Program, topology: Topology) -> NDArray[np.int64]:
    """Return int64[links]: the chunks of `program` that cross each link. O(instructions + links of the routes)."""
    paths, loads = Paths(topology), np.zeros(len(topology.links), dtype=np.int64)
    for connection, ends in program_connections(program).items():
        loads[list(paths.path(connection) or ())] += sum(ends.sent)
    return loads


def program_time_per_byte(program: Program, topology: Topology) -> Fraction:
    """Return the least time per byte of the vector that the busiest link allows, in 1 / bandwidth_unit."""
    return topology.links.longest_time(program_loads(program, topology)) / program.chunks


def play(
    program: Program, topology: Topology, network: NetworkModel, size_bytes: int, buffer_bytes: int | None
) -> ProgramTrace:
    """Return what happens when `program` runs on a vector of `size_bytes`, by the flow model.

    `buffer_bytes` as in `runners.simulated.SimulatedRunner`; sizes that the chunks do not divide are taken as they are.
    The program must have been checked. InvalidInput for more than `MOST_MESSAGES`, CheckFailed if it hangs.
    """
    chunk_bytes = size_bytes / program.chunks
    loops, slices = (1, 1) if buffer_bytes is None else buffer_parts(chunk_bytes, buffer_bytes)
    sends = sum(len(ends.sent) for ends in program_connections(program).values())
    if sends * loops * slices > MOST_MESSAGES:
        value = f"{sends * loops * slices} for {size_bytes} bytes"
        raise InvalidInput(f"at most {MOST_MESSAGES} messages are simulated", value, "ask for a smaller size")
    flows = ProgramFlows(program, topology, loops, slices)
    times = simulate_flows(flows.graph, topology, network, chunk_bytes / (loops * slices))
    for at in flows.stuck(times):
        value = f"rank {at.rank} block {at.block} instruction {at.step}: {at.reason}"
        raise CheckFailed("a program must end", value, "see all of it with `chorale lift`")
    return flows.trace(times)
