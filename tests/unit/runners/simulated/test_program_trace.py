"""Traces of simulated programs: every message once, at the times that can be worked out by hand."""

import numpy as np
import pytest

from chorale.runners.api.programs import program_connections
from chorale.runners.simulated.program_flows import ProgramFlows, ProgramTrace
from chorale.synth.programs.check_structure import message_counts
from chorale.synth.programs.program import Program
from chorale.synth.simulation.flow_simulation import NetworkModel, simulate_flows
from chorale.synth.topology.spec import parse_topology
from tests.conformance.example_programs import ring_allgather, ring_allreduce
from tests.unit.synth.lowering.programs import lowered

MODEL = NetworkModel.of(alpha_us=2, link_latency_us=1, link_gbps=8)


def traced(program: Program, spec: str, chunk_bytes: float, loops: int = 1, slices: int = 1) -> ProgramTrace:
    topology = parse_topology(spec)
    flows = ProgramFlows(program, topology, loops, slices)
    return flows.trace(simulate_flows(flows.graph, topology, MODEL, chunk_bytes / (loops * slices)))


def test_messages_of_a_ring_follow_one_another():
    trace = traced(ring_allgather(4, in_place=True), "ring:4", 1000)
    assert len(trace) == 4 * 3
    own = trace.src == 1
    assert trace.dst[own].tolist() == [2, 2, 2]
    # 2 us before a message leaves, 1 us on the link for its 1000 bytes, 1 us of latency; 4 us until the next may start
    assert trace.start_s[own] == pytest.approx([0, 4e-6, 8e-6])
    assert trace.left_s[own] == pytest.approx([3e-6, 7e-6, 11e-6])
    assert trace.arrived_s[own] == pytest.approx([4e-6, 8e-6, 12e-6])
    assert trace.end_s == pytest.approx(12e-6)


def test_sums_are_told_from_copies():
    trace = traced(ring_allreduce(range(4)), "ring:4", 1000)
    assert trace.adds.tolist() == [True] * 12 + [False] * 12
    assert np.all(np.diff(trace.start_s) >= 0)


@pytest.mark.parametrize(("loops", "slices"), [(1, 1), (3, 2)])
@pytest.mark.parametrize("method", ["bfb", "ring"])
def test_every_message_is_there_with_what_it_carries(method, loops, slices):
    program = lowered("hypercube:3", "allreduce", method=method, instances=2)
    trace = traced(program, "hypercube:3", 6000, loops, slices)
    sent, _ = message_counts(program)
    for connection in program_connections(program):
        own = (trace.src == connection.src) & (trace.dst == connection.dst) & (trace.channel == connection.channel)
        assert own.sum() == len(sent[connection]) * loops * slices
        assert trace.chunks[own].sum() == pytest.approx(sum(sent[connection]))
        senders = [
            number
            for number, block in enumerate(program.ranks[connection.src].blocks)
            if (block.send_peer, block.channel) == (connection.dst, connection.channel)
        ]
        assert np.unique(trace.block[own]).tolist() == senders
        links = [trace.routes.path(route).tolist() for route in np.unique(trace.route[own]).tolist()]
        assert len(links) == 1
    assert np.all(trace.start_s < trace.left_s)
    assert np.all(trace.left_s < trace.arrived_s)
    assert trace.arrived_s.max() == pytest.approx(trace.end_s)
