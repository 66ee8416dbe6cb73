"""Plans as flows: what they send, in which order, and when it is there."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from chorale.runners.api.programs import sent_chunks
from chorale.runners.simulated.plan_flows import PlanFlows, flows_of
from chorale.synth.programs.plans.plan import Action
from chorale.synth.simulation.flow_simulation import NetworkModel, simulate_flows
from chorale.synth.targets.mscclpp_reading import parse_plan
from chorale.synth.topology.spec import parse_topology
from chorale.tuner.costs.pricing import program_loads
from tests.unit.synth.programs.plans.examples import SMALL, made, operations

MODEL = NetworkModel(alpha_s=Fraction(1, 10**6), link_latency_s=Fraction(1, 10**6), link_gbps=Fraction(8))


@pytest.mark.parametrize("plan", SMALL, ids=lambda plan: plan.name)
def test_every_put_becomes_a_message_and_all_of_it_happens(plan):
    topology = parse_topology(plan.name.split()[2])
    flows = PlanFlows(plan, topology)
    puts = [operation for *_, operation in operations(plan) if operation.action is Action.PUT]
    assert flows.graph.messages == sum(len(put.targets) for put in puts)
    assert flows.graph.gates == len(list(operations(plan)))
    times = simulate_flows(flows.graph, topology, MODEL, 1000)
    assert not np.isnan(times.opened_s).any()
    assert flows.stuck(times) == []
    trace = flows.trace(times)
    assert sum(sent_chunks(plan).values()) == sum(target.count for put in puts for target in put.targets)
    assert trace.end_s == max(trace.arrived_s) > 0
    for rank, block, step, operation in operations(plan):
        own = (trace.src == rank) & (trace.block == block) & (trace.step == step)
        assert own.sum() == (len(operation.targets) if operation.action is Action.PUT else 0)


def test_a_hop_waits_for_the_one_before():
    """Around a ring of four, three messages follow one another: each 1 us, 8 chunks of 1000 bytes at 1 GB/s, 1 us."""
    plan = parse_plan(made("uniring:1,4", "allgather", method="ring", in_place=False).encode())
    topology = parse_topology("uniring:1,4")
    flows = PlanFlows(plan, topology)
    chunks = plan.chunks // 4
    times = simulate_flows(flows.graph, topology, MODEL, 8000 / chunks)
    trace = flows.trace(times)
    assert trace.end_s == pytest.approx(3 * 10e-6)
    assert sorted(set(np.round(trace.start_s * 1e6).astype(int).tolist())) == [0, 10, 20]


def test_parallel_links_carry_a_channel_each():
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
    stuck = flows.stuck(simulate_flows(flows.graph, topology, MODEL, 1000))
    assert {(at.step, at.reason) for at in stuck} == {(0, "wait never ends")}
