"""What programs cost, and training profiles: what ships is what was published."""

import json
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
from chorale.synth.simulation.simulate import NetworkModel
from chorale.synth.topology.spec import parse_topology
from chorale.tuner.costs.pricing import (
    FORMAT,
    SHIPPED,
    Pricing,
    load_profile,
    program_loads,
    program_time_per_byte,
    simulate_program,
    split_network,
    training_costs,
)
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


def test_programs_that_send_nothing_too_much_or_hang():
    idle = program_of(ALLGATHER, 2, [rank_of(), rank_of()])
    assert program_time_per_byte(idle, parse_topology("complete:2")) == Fraction(0)
    ring = lowered("ring:4", "allreduce"), parse_topology("ring:4")
    with pytest.raises(InvalidInput, match="at most 100 messages"):
        simulate_program(*ring, MODEL, 2**30, 2**14, max_messages=100)
    taking = Instruction(Op.RECV, BufferRef("o", 0), BufferRef("o", 0), 1)
    sending = Instruction(Op.SEND, BufferRef("o", 0), BufferRef("o", 0), 1)
    both = [rank_of(ThreadBlock(1 - rank, 1 - rank, 0, (taking, sending))) for rank in (0, 1)]
    with pytest.raises(CheckFailed, match="rank 0 block 0 instruction 0: r waits for a message from rank 1"):
        simulate_program(program_of(ALLGATHER, 2, both), parse_topology("complete:2"), MODEL, 4096, None)


@pytest.mark.parametrize("buffer_bytes", [None, 2**14])
def test_the_simulated_runner_says_the_same(buffer_bytes):
    program, topology = lowered("torus:3x3", "allreduce"), parse_topology("torus:3x3")
    size_bytes = program.chunks * 2**14
    request = runner_kit.request_of(program, "torus:3x3", size_bytes)
    (result,) = runner_kit.measured(SimulatedRunner(MODEL, buffer_bytes).submit(request)).results["program"]
    trace = simulate_program(program, topology, MODEL, size_bytes, buffer_bytes)
    assert trace.end_s == result.median_s
    assert np.isfinite(trace.left_s).all()


GIVEN = {"alpha_us": "10", "link_latency_us": "0", "hop_us": "0", "link_gbps": "25"}


def test_allreduce_and_alltoall_on_a_complete_network():
    """5 nodes, 4 links each: one step each way, 1/5 of the vector over every link; one hop for every token."""
    costs = training_costs("bfb", "complete:5", Pricing.of(GIVEN, None), with_alltoall=True)
    link = 25e9 / 8
    assert costs.allreduce_s(10**6) == pytest.approx(2 * (10e-6 + 10**6 / 5 / link))
    assert costs.alltoall_s(10**6) == pytest.approx(10**6 / 5 / link, rel=0.011)
    costs = training_costs("hamiltonian-ring", "shiftedring:8", Pricing.of(GIVEN, None), with_alltoall=False)
    assert costs.allreduce_s(8 * 10**6) == pytest.approx(14 * 10e-6 + 2 * 7 / 8 * 8 * 10**6 / 12.5e9)
    with pytest.raises(ValueError, match="without"):
        costs.alltoall_s(1)


def test_methods_before_specs():
    parts = {
        "torus:4x4": ("bfb", "torus:4x4"),
        "swing@torus:4x4": ("swing", "torus:4x4"),
        "file:a@b.json": ("bfb", "file:a@b.json"),
        "ring@file:a@b.json": ("ring", "file:a@b.json"),
    }
    assert {text: split_network(text) for text in parts} == parts


def document(**changes):
    layer = {"name": "layer", "parameters": 10, "forward_flops": 100, "alltoall_bytes": 3}
    head = {"format": FORMAT, "name": "model", "source": "made up", "samples": 2, "flops_per_s": 50}
    return head | {"stages": [{"repeat": 3, "layers": [layer]}]} | changes


def load(tmp_path, content):
    file = tmp_path / "profile.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return load_profile(str(file))


def test_shipped_profiles_are_those_of_the_published_models():
    """Experts are spread over ranks and not in the profile; with them the model has the size that was published."""
    profiles = {name: load_profile(name) for name in SHIPPED}
    for name, profile in profiles.items():
        assert profile.name == name
        assert "not measured" in profile.source
        assert profile.has_experts == name.startswith("switch")
    assert {name: profile.parameters for name, profile in profiles.items() if not profile.has_experts} == {
        "resnet-50": 25_557_032,
        "bert-large": 336_226_108 - 2_050,  # without the head that tells whether sentences follow one another
        "gpt2-small": 124_439_808,
        "gpt2-medium": 354_823_168,
        "gpt2-large": 774_030_080,
    }
    for name, total, layers, width in (("switch-base-256", 14.7e9, 12, 768), ("switch-c-2048", 1.57e12, 30, 2080)):
        experts = int(name.rpartition("-")[2]) * 2 * width * {768: 3072, 2080: 6144}[width]
        assert sum(1 for layer in profiles[name].layers() if layer.alltoall_bytes) == layers
        assert profiles[name].parameters + layers * experts == pytest.approx(total, rel=0.005)
    resnet = profiles["resnet-50"]  # 4.1 billion multiplications with additions
    forward_s = sum(layer.forward_s for layer in resnet.layers())
    assert forward_s * resnet.flops_per_s / resnet.samples == pytest.approx(2 * 4.09e9, rel=0.01)


def test_layers_by_operations_and_by_time(tmp_path):
    layers = load(tmp_path, document()).layers()
    assert len(layers) == 3
    assert (layers[0].forward_s, layers[0].backward_s) == (4, 8)
    assert (layers[0].gradient_bytes, layers[0].alltoall_bytes) == (40, 6)
    stages = [{"layers": [{"name": "layer", "forward_us": 5, "backward_us": 7.5}]}]
    (layer,) = load(tmp_path, document(stages=stages, flops_per_s=None)).layers()
    assert (layer.forward_s, layer.backward_s, layer.gradient_bytes) == (5e-6, 7.5e-6, 0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "the profile: Invalid JSON"),
        (document(format="other/1"), "format"),
        (document(colour="red"), "colour"),
        (document(flops_per_s=None), "need the flops_per_s"),
        (document(stages=[{"layers": []}]), r"stages\.0\.layers"),
        (document(stages=[{"layers": [{"name": "x"}]}]), r"stages\.0\.layers\.0: a layer has either"),
        (document(stages=[{"layers": [{"name": "x", "forward_us": -1, "backward_us": 1}]}]), "forward_us"),
        (document(stages=[{"repeat": 2**16, "layers": [{"name": "x", "forward_flops": 1}]}] * 2), "at most 65536"),
    ],
)
def test_broken_files_are_refused(tmp_path, content, message):
    with pytest.raises(InvalidInput, match=message) as refusal:
        load(tmp_path, content)
    assert "\n" not in str(refusal.value)
