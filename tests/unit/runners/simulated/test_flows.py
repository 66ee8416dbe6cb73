"""Programs and plans as flows: every message once, in order, at times that can be worked out by hand."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from chorale.runners.api.programs import program_connections, sent_chunks
from chorale.runners.simulated.plan_flows import PlanFlows, flows_of
from chorale.runners.simulated.program_flows import ProgramFlows, ProgramTrace
from chorale.synth.programs.check_structure import message_counts
from chorale.synth.programs.plans.plan import Action
from chorale.synth.programs.program import Program
from chorale.synth.simulation.simulate import NetworkModel, simulate_flows
from chorale.synth.targets.mscclpp_text import parse_plan
from chorale.synth.topology.spec import parse_topology
from chorale.tuner.costs.pricing import program_loads
from tests.conformance.example_programs import ring_allgather, ring_allreduce
from tests.unit.synth.lowering.programs import lowered
from tests.unit.synth.programs.plans.examples import SMALL, made, operations

MODEL = NetworkModel.of(alpha_us=2, link_latency_us=1, link_gbps=8)


def traced(program: Program, spec: str, chunk_bytes: float, loops: int = 1, slices: int = 1) -> ProgramTrace:
    topology = parse_topology(spec)
    flows = ProgramFlows(program, topology, loops, slices)
    return flows.trace(simulate_flows(flows.graph, topology, MODEL, chunk_bytes / (loops * slices)))


def test_messages_of_a_ring_follow_one_another_and_sums_are_told_from_copies():
    trace = traced(ring_allgather(4, in_place=True), "ring:4", 1000)
    assert len(trace) == 4 * 3
    own = trace.src == 1
    assert trace.dst[own].tolist() == [2, 2, 2]
    # 2 us before a message leaves, 1 us on the link for its 1000 bytes, 1 us of latency; 4 us until the next may start
    assert trace.start_s[own] == pytest.approx([0, 4e-6, 8e-6])
    assert trace.left_s[own] == pytest.approx([3e-6, 7e-6, 11e-6])
    assert trace.arrived_s[own] == pytest.approx([4e-6, 8e-6, 12e-6])
    assert trace.end_s == pytest.approx(12e-6)
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
        blocks = program.ranks[connection.src].blocks
        senders = [(block.send_peer, block.channel) == (connection.dst, connection.channel) for block in blocks]
        assert np.unique(trace.block[own]).tolist() == np.flatnonzero(senders).tolist()
        links = [trace.routes.path(route).tolist() for route in np.unique(trace.route[own]).tolist()]
        assert len(links) == 1
    assert np.all(trace.start_s < trace.left_s)
    assert np.all(trace.left_s < trace.arrived_s)
    assert trace.arrived_s.max() == pytest.approx(trace.end_s)


PLAN_MODEL = NetworkModel(alpha_s=Fraction(1, 10**6), link_latency_s=Fraction(1, 10**6), link_gbps=Fraction(8))


@pytest.mark.parametrize("plan", SMALL, ids=lambda plan: plan.name)
def test_every_put_becomes_a_message_and_all_of_it_happens(plan):
    topology = parse_topology(plan.name.split()[2])
    flows = PlanFlows(plan, topology)
    puts = [operation for *_, operation in operations(plan) if operation.action is Action.PUT]
    assert flows.graph.messages == sum(len(put.targets) for put in puts)
    assert flows.graph.gates == len(list(operations(plan)))
    times = simulate_flows(flows.graph, topology, PLAN_MODEL, 1000)
    assert not np.isnan(times.opened_s).any()
    assert flows.stuck(times) == []
    trace = flows.trace(times)
    assert sum(sent_chunks(plan).values()) == sum(target.count for put in puts for target in put.targets)
    assert trace.end_s == max(trace.arrived_s) > 0
    for rank, block, step, operation in operations(plan):
        own = (trace.src == rank) & (trace.block == block) & (trace.step == step)
        assert own.sum() == (len(operation.targets) if operation.action is Action.PUT else 0)


def test_a_hop_waits_for_the_one_before_and_parallel_links_carry_a_channel_each():
    """Around a ring of four, three messages follow one another: each 1 us, 8 chunks of 1000 bytes at 1 GB/s, 1 us."""
    plan = parse_plan(made("uniring:1,4", "allgather", method="ring", in_place=False).encode())
    topology = parse_topology("uniring:1,4")
    flows = PlanFlows(plan, topology)
    chunks = plan.chunks // 4
    times = simulate_flows(flows.graph, topology, PLAN_MODEL, 8000 / chunks)
    trace = flows.trace(times)
    assert trace.end_s == pytest.approx(3 * 10e-6)
    assert sorted(set(np.round(trace.start_s * 1e6).astype(int).tolist())) == [0, 10, 20]
    plan = parse_plan(made("biring:4,3", "allgather").encode())
    loads = program_loads(plan, parse_topology("biring:4,3"))
    assert len(loads) == 12
    assert len(set(loads.tolist())) == 1


def test_blocks_that_wait_for_each_other_are_named():
    plan = SMALL[1]
    ranks = []
    for body in plan.ranks:
        blocks = (sorted(block.operations, key=lambda item: item.action is not Action.WAIT) for block in body.blocks)
        swapped = zip(body.blocks, blocks, strict=True)
        ranks.append(replace(body, blocks=tuple(replace(block, operations=tuple(items)) for block, items in swapped)))
    topology = parse_topology("ring:4")
    flows = flows_of(replace(plan, ranks=tuple(ranks)), topology)
    stuck = flows.stuck(simulate_flows(flows.graph, topology, PLAN_MODEL, 1000))
    assert {(at.step, at.reason) for at in stuck} == {(0, "wait never ends")}
