"""The method auto keeps the schedule of lowest proven cost, and says which method made it."""

from __future__ import annotations

import pytest

from chorale.synth.bounds.lower_bound import lower_bound
from chorale.synth.collective import parse_collective
from chorale.synth.errors import InvalidInput
from chorale.synth.executor.serial import SerialExecutor
from chorale.synth.methods import auto
from chorale.synth.methods.auto import auto_method
from chorale.synth.methods.catalog import METHODS, form_of, synthesize
from chorale.synth.methods.method import Options
from chorale.synth.topology.spec import parse_topology
from chorale.synth.verify.verify import verify


def cost_of(method: str, spec: str, collective: str, options: Options | None = None):
    verified = synthesize(method, parse_topology(spec), parse_collective(collective), options, SerialExecutor())
    return (verified.cost.time_per_byte, verified.cost.steps), verified.schedule.method


def limited(spec: str, **limits: int):
    """Return what auto makes of an allgather where it has other limits."""
    named = {name: method for name, method in METHODS.items() if name != "auto"}
    method = auto_method(named, **limits)
    return method.schedule(parse_topology(spec), parse_collective("allgather"), Options(), SerialExecutor(), None)


@pytest.mark.parametrize("collective", ["allgather", "reduce_scatter", "allreduce", "broadcast", "reduce"])
@pytest.mark.parametrize("spec", ["torus:4x4", "ring:5", "switch:4,100", "kautz:2,2", "without(torus:3x3;link=0-1)"])
def test_no_method_is_better(spec, collective):
    best, winner = cost_of("auto", spec, collective)
    assert winner in METHODS
    assert winner != "auto"
    costs = {}
    for name in METHODS:
        try:
            costs[name] = cost_of(name, spec, collective)[0]
        except InvalidInput:
            continue
    assert best == min(costs.values()) == costs[winner]


def test_large_networks_stop_at_the_lower_bound():
    schedule = limited("torus:4x4", max_ranks_all_methods=8)
    assert schedule.method == "bfb"
    bound = lower_bound(parse_topology("torus:4x4"), parse_collective("allgather")).value
    assert verify(schedule).cost.time_per_byte == bound


def test_a_second_method_is_tried_where_the_first_misses_the_bound():
    assert limited("switch:4,100", max_ranks_all_methods=2).method == "forest"


def test_options_leave_the_methods_that_obey_them():
    assert cost_of("auto", "torus:3x3", "allgather", Options(k=1))[1] in ("forest", "blink")


def test_nothing_that_suits_is_refused():
    with pytest.raises(InvalidInput, match="some method must suit"):
        cost_of("auto", "ring:4", "allreduce", Options(k=1, chunks=2))


def test_the_form_is_that_of_the_method_that_wins():
    large = parse_topology("torus:66x66")
    forms = {name: form_of("auto", large, parse_collective(name)) for name in ("allgather", "allreduce", "broadcast")}
    assert forms == {"allgather": "symmetric", "allreduce": "symmetric", "broadcast": "columns"}
    assert form_of("auto", large, parse_collective("allgather"), Options(k=1)) == "columns"
    assert form_of("auto", parse_topology("torus:4x4")) == "columns"


def test_very_large_networks_take_the_first_method_unverified(monkeypatch):
    monkeypatch.setattr(auto, "verify", None)
    assert limited("torus:4x4", max_ranks_second_method=8).method == "bfb"
