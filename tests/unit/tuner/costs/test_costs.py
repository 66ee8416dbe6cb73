"""What programs cost: loads are those of their schedules, and a simulation is what the simulated runner says."""

from fractions import Fraction

import numpy as np
import pytest

from chorale.runners.simulated.runner import SimulatedRunner
from chorale.synth.collective import ALLGATHER
from chorale.synth.errors import CheckFailed, InvalidInput
from chorale.synth.lowering.lower import lower
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.programs.program import BufferRef, Instruction, Op, ThreadBlock
from chorale.synth.schedule.traffic import traffic_of
from chorale.synth.simulation.flow_simulation import NetworkModel
from chorale.synth.topology.spec import parse_topology
from chorale.tuner.costs.pricing import Pricing, program_loads, program_time_per_byte, simulate_program
from chorale.tuner.costs.training import split_network, training_costs
from tests.conformance import runner_kit
from tests.conformance.example_programs import program_of, rank_of
from tests.unit.synth.lowering.programs import lowered, verified

MODEL = NetworkModel.of(alpha_us=1, hop_us="0.3", link_gbps=100)


@pytest.mark.parametrize(
    ("spec", "collective", "method"),
    [("torus:3x3", "allreduce", "bfb"), ("a100:2", "allgather", "forest"), ("ring:6", "reduce_scatter", "biring")],
)
def test_links_carry_what_they_carry_in_the_schedule(spec, collective, method):
    schedule = verified(spec, collective, method)
    program = lower(schedule, LoweringOptions("msccl-xml", channels=2, instances=2))
    traffic = traffic_of(schedule.schedule)
    expected = sum(traffic.link_amounts(step) for step in traffic.steps)
    loads = program_loads(program, schedule.schedule.topology)
    assert (loads * traffic.denominator == expected * program.chunks).all()
    if schedule.schedule.kind == "pipelined" or method == "biring":
        assert program_time_per_byte(program, schedule.schedule.topology) == schedule.cost.time_per_byte


def test_a_network_without_traffic_costs_nothing():
    idle = program_of(ALLGATHER, 2, [rank_of(), rank_of()])
    assert program_time_per_byte(idle, parse_topology("complete:2")) == Fraction(0)


@pytest.mark.parametrize("buffer_bytes", [None, 2**14])
def test_the_simulated_runner_says_the_same(buffer_bytes):
    program, topology = lowered("torus:3x3", "allreduce"), parse_topology("torus:3x3")
    size_bytes = program.chunks * 2**14
    request = runner_kit.request_of(program, "torus:3x3", size_bytes)
    (result,) = runner_kit.measured(SimulatedRunner(MODEL, buffer_bytes).submit(request)).results["program"]
    trace = simulate_program(program, topology, MODEL, size_bytes, buffer_bytes)
    assert trace.end_s == result.median_s
    assert np.isfinite(trace.left_s).all()


def test_too_many_messages_are_refused():
    ring = lowered("ring:4", "allreduce"), parse_topology("ring:4")
    with pytest.raises(InvalidInput, match="at most 100 messages"):
        simulate_program(*ring, MODEL, 2**30, 2**14, max_messages=100)


def test_a_program_that_hangs_is_named():
    taking = Instruction(Op.RECV, BufferRef("o", 0), BufferRef("o", 0), 1)
    sending = Instruction(Op.SEND, BufferRef("o", 0), BufferRef("o", 0), 1)
    both = [rank_of(ThreadBlock(1 - rank, 1 - rank, 0, (taking, sending))) for rank in (0, 1)]
    with pytest.raises(CheckFailed, match="rank 0 block 0 instruction 0: r waits for a message from rank 1"):
        simulate_program(program_of(ALLGATHER, 2, both), parse_topology("complete:2"), MODEL, 4096, None)


GIVEN = {"alpha_us": "10", "link_latency_us": "0", "hop_us": "0", "link_gbps": "25"}


def test_allreduce_and_alltoall_on_a_complete_network():
    """5 nodes, 4 links each: one step each way, 1/5 of the vector over every link; one hop for every token."""
    costs = training_costs("bfb", "complete:5", Pricing.of(GIVEN, None), with_alltoall=True)
    link = 25e9 / 8
    assert costs.allreduce_s(10**6) == pytest.approx(2 * (10e-6 + 10**6 / 5 / link))
    assert costs.alltoall_s(10**6) == pytest.approx(10**6 / 5 / link, rel=0.011)


def test_alltoall_must_be_asked_for():
    costs = training_costs("hamiltonian-ring", "shiftedring:8", Pricing.of(GIVEN, None), with_alltoall=False)
    assert costs.allreduce_s(8 * 10**6) == pytest.approx(14 * 10e-6 + 2 * 7 / 8 * 8 * 10**6 / 12.5e9)
    with pytest.raises(ValueError, match="without"):
        costs.alltoall_s(1)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("torus:4x4", ("bfb", "torus:4x4")),
        ("swing@torus:4x4", ("swing", "torus:4x4")),
        ("file:a@b.json", ("bfb", "file:a@b.json")),
        ("ring@file:a@b.json", ("ring", "file:a@b.json")),
    ],
)
def test_methods_before_specs(text, parts):
    assert split_network(text) == parts
