"""What a program costs on a network: exact loads of links, and times by simulation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from chorale.runners.api.programs import Connection, ConnectionPaths, sent_chunks
from chorale.runners.simulated.plan_flows import PlanMessages, flows_of, priced
from chorale.runners.simulated.program_flows import ProgramTrace
from chorale.runners.simulated.runner import buffer_splits
from chorale.synth.errors import CheckFailed, InvalidInput
from chorale.synth.programs.plans.plan import ExecutionPlan
from chorale.synth.programs.postconditions import AnyProgram
from chorale.synth.programs.program import Program
from chorale.synth.simulation.flow_simulation import simulate_flows
from chorale.synth.simulation.network_model import NetworkModel
from chorale.synth.targets.judge import network_of
from chorale.synth.topology.relabelling import promoted
from chorale.synth.topology.topology import Topology
from chorale.synth.verify.verified import VerifiedSchedule

MAX_MESSAGES = 2**22
"""Of a simulated program, all loops together; each takes about a kilobyte and ten microseconds."""
_BUFFER_BYTES: Mapping[str, int] = {"msccl-xml": 2**22, "msccl-executor-xml": 2**22}
"""By target: the buffer of a connection that long chunks stream through, as large as NCCL's for the Simple protocol."""

_FREE = NetworkModel(link_gbps=Fraction(100))


def usual_buffer_bytes(program: AnyProgram) -> int | None:
    """Return the buffer of a connection of the runtime that `program` is for, None where there is none."""
    return _BUFFER_BYTES.get(program.target)


def program_loads(program: AnyProgram, topology: Topology) -> NDArray[np.int64]:
    """Return int64[links]: the chunks of `program` that cross each link. O(instructions + links of the routes)."""
    loads, parts = _loads(program, topology)
    return -(-loads // parts)


def program_time_per_byte(program: AnyProgram, topology: Topology) -> Fraction:
    """Return the least time per byte of the vector that the busiest link allows, in 1 / bandwidth_unit."""
    loads, parts = _loads(program, topology)
    return topology.links.longest_time(loads) / (program.chunks * parts)


def _loads(program: AnyProgram, topology: Topology) -> tuple[NDArray[np.int64], int]:
    """Return the parts of chunks that cross each link, and how many parts a chunk has."""
    if isinstance(program, Program) and program.switches:
        processes = promoted(topology, program.switches)
        loads = np.zeros(len(topology.links), dtype=np.int64)
        loads[processes.origin], parts = _loads(replace(program, switches=()), processes.network)
        return loads, parts
    paths, loads = ConnectionPaths(topology), np.zeros(len(topology.links), dtype=np.int64)
    moved: Iterable[tuple[Connection, int]] = ()
    parts = 1
    if isinstance(program, ExecutionPlan):
        messages = PlanMessages(program, topology)
        moved, parts = messages.all(), messages.parts
    else:
        moved = sent_chunks(program).items()
    for connection, chunks in moved:
        loads[list(paths.path(connection) or ())] += chunks
    return loads, parts


def simulate_program(
    program: AnyProgram,
    topology: Topology,
    network: NetworkModel,
    size_bytes: int,
    buffer_bytes: int | None,
    *,
    max_messages: int = MAX_MESSAGES,
) -> ProgramTrace:
    """Return the simulated run of `program` on a vector of `size_bytes`, by the flow model.

    `buffer_bytes` as in `chorale.runners.simulated.runner.SimulatedRunner`; plans have no buffers, and where `network`
    has no alpha, latencies by kinds of operations instead of its own. Sizes that the chunks do not divide are taken as
    they are. The program must have been checked. InvalidInput for more than
    `max_messages`, CheckFailed if it hangs.
    """
    loops, slices, messages = _parts(program, size_bytes, buffer_bytes)
    if messages > max_messages:
        value, way_out = f"{messages} for {size_bytes} bytes", "ask for a smaller size, or lower it with fewer chunks"
        raise InvalidInput(f"at most {max_messages} messages are simulated", value, way_out)
    prices, network = priced(program, network)
    topology = network_of(program, topology)
    flows = flows_of(program, topology, loops, slices, prices)
    times = simulate_flows(flows.graph, topology, network, size_bytes / program.chunks / (loops * slices))
    for at in flows.stuck(times):
        value = f"rank {at.rank} block {at.block} instruction {at.step}: {at.reason}"
        raise CheckFailed("a program must end", value, "see all of it with `chorale lift`")
    return flows.trace(times)


def simulated_messages(program: AnyProgram, size_bytes: int, buffer_bytes: int | None) -> int:
    """Return how many messages `simulate_program` would simulate."""
    return _parts(program, size_bytes, buffer_bytes)[2]


def lowering_loss(verified: VerifiedSchedule, program: Program, size_bytes: int, buffer_bytes: int | None) -> float:
    """Return by which fraction `program` takes longer than the cost of its schedule, by the flow model without
    latencies, so that only the order of messages counts."""
    topology = verified.schedule.topology
    planned_s = float(verified.cost.time_per_byte * size_bytes / _FREE.unit_bytes_per_s(topology))
    return simulate_program(program, topology, _FREE, size_bytes, buffer_bytes).end_s / planned_s - 1


def _parts(program: AnyProgram, size_bytes: int, buffer_bytes: int | None) -> tuple[int, int, int]:
    """Return loops, slices and messages of a simulation."""
    loops, slices = 1, 1
    if buffer_bytes is not None and not program.one_sided:
        loops, slices = buffer_splits(size_bytes / program.chunks, buffer_bytes)
    return loops, slices, sum(1 for _ in program.messages()) * loops * slices
