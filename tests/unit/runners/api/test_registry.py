"""Runners by name: what each declares, options as values and as text, and what is refused."""

import subprocess
import sys
from fractions import Fraction
from typing import Any

import pytest

from chorale.runners.api.base import RunRequest
from chorale.runners.api.registry import RUNNERS, create_runner, runner_config
from chorale.synth.errors import InvalidInput
from chorale.synth.topology.spec import parse_topology
from tests.conformance.example_programs import ring_allreduce

HEAVY = ("ray", "scipy", "mpi4py", "torch")
IMPLEMENTATIONS = ("local.runner", "simulated", "recorded.runner", "oneccl.runner", "mpi.runner", "msccl.runner")


@pytest.mark.parametrize("name", RUNNERS)
def test_every_runner_can_be_created_with_its_defaults(name: str) -> None:
    runner = create_runner(name)
    assert runner.name == name
    runner.close()


def test_unknown_names_and_options_are_refused_with_what_is_known() -> None:
    with pytest.raises(InvalidInput, match="unknown runner 'quantum'; choose from local, simulated"):
        create_runner("quantum")
    with pytest.raises(InvalidInput, match="the simulated runner has no option 'speed'"):
        create_runner("simulated", {"speed": 1})


@pytest.mark.parametrize(
    ("runner", "name", "text", "value"),
    [
        ("local", "link_mbps", "12.5", 12.5),
        ("local", "link_mbps", 3.0, 3.0),
        ("local", "link_mbps", Fraction(25, 2), 12.5),
        ("local", "link_mbps", None, None),
        ("local", "probe", "False", False),
        ("local", "probe", "yes", True),
        ("simulated", "alpha_us", "1/3", Fraction(1, 3)),
        ("simulated", "alpha_us", "0.1", Fraction(1, 10)),
        ("simulated", "hop_us", 0.1, Fraction(1, 10)),
        ("simulated", "link_mbps", 3, Fraction(3)),
        ("simulated", "link_mbps", Fraction(100, 3), Fraction(100, 3)),
        ("simulated", "link_latency_us", "2.5e-1", Fraction(1, 4)),
        ("simulated", "buffer_bytes", "1MiB", 2**20),
        ("simulated", "buffer_bytes", "8", 8),
        ("recorded", "schedule", "8", "8"),
        ("msccl", "gpus_per_node", "2", 2),
        ("msccl", "hosts", "gpu-a, gpu-b", ["gpu-a", "gpu-b"]),
        ("msccl", "variables", "A=1 B=x=y", {"A": "1", "B": "x=y"}),
        ("msccl", "variables", {"A": "1"}, {"A": "1"}),
    ],
)
def test_text_becomes_what_an_option_takes(runner: str, name: str, text: Any, value: Any) -> None:
    read = getattr(runner_config(runner, {name: text}), name)
    assert (type(read), read) == (type(value), value)


@pytest.mark.parametrize(
    ("runner", "name", "text", "message"),
    [
        ("local", "link_mbps", "fast", "the option link_mbps of the local runner: the value should be a valid number"),
        ("local", "probe", "maybe", "the option probe of the local runner: the value should be a valid boolean"),
        ("simulated", "buffer_bytes", "-1", "cannot read the size '"),
        ("simulated", "alpha_us", "1/0", "the option alpha_us of the simulated runner: a number must be a"),
        ("simulated", "alpha_us", "nan", "a number must be a rational number"),
        ("simulated", "alpha_us", "-1/3", "greater than or equal to 0, got -1/3"),
        ("simulated", "link_mbps", "0", "the value should be greater than 0"),
        ("simulated", "alpha_us", True, "a number must be a rational number"),
        ("simulated", "alpha_us", "0." + "1" * 60, "at most 64 characters"),
        ("mpi", "where", "moon", "'fabric', 'cluster' or 'loopback', got moon; where: Default: a fabric if one is up"),
        ("msccl", "runtime", "nccl", "the value should be 'msccl', 'executor' or 'rccl', got nccl"),
        ("msccl", "variables", "A", "the option variables of the msccl runner: write NAME=VALUE"),
    ],
)
def test_text_that_is_something_else_is_refused(runner: str, name: str, text: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        runner_config(runner, {name: text})


def test_the_simulated_runner_calculates_with_exactly_the_numbers_that_it_is_given() -> None:
    options = {"link_mbps": "100/3", "alpha_us": "1/3", "link_latency_us": 0.1, "hop_us": "1e-30"}
    runner = create_runner("simulated", options)
    program = ring_allreduce(range(4))
    outcome = runner.submit(RunRequest(parse_topology("ring:4"), {"ring": program}, (64,), repeats=1))
    runner.close()
    facts = {"alpha_s": "1/3000000", "link_latency_s": "1/10000000", "hop_s": f"1/{10**36}", "link_gbps": "1/30"}
    assert {name: outcome.environment[name] for name in facts} == facts


@pytest.mark.parametrize("module", ["chorale.runners.api.registry", "chorale.tuner.config.campaign_file"])
def test_what_runners_declare_is_light(module: str) -> None:
    """Reading a campaign imports no runner that executes programs, and nothing that takes long."""
    heavy = (*HEAVY, *(f"runners.{name}" for name in IMPLEMENTATIONS))
    script = f"import sys, {module}; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
