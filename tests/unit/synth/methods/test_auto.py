"""The method auto keeps the schedule of lowest proven cost, and says which method made it."""

from __future__ import annotations

import pytest

from chorale.synth.bounds.lower_bound import lower_bound
from chorale.synth.collective import parse_collective
from chorale.synth.errors import InvalidInput
from chorale.synth.executor.serial import SerialExecutor
from chorale.synth.methods import auto
from chorale.synth.methods.catalog import METHODS, form_of, synthesize
from chorale.synth.methods.method import Options
from chorale.synth.topology.spec import parse_topology


def cost_of(method: str, spec: str, collective: str, options: Options | None = None):
    verified = synthesize(method, parse_topology(spec), parse_collective(collective), options, SerialExecutor())
    return (verified.cost.time_per_byte, verified.cost.steps), verified.schedule.method


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


def test_large_networks_stop_at_the_lower_bound(monkeypatch):
    monkeypatch.setattr(auto, "MAX_RANKS_ALL_METHODS", 8)
    best, winner = cost_of("auto", "torus:4x4", "allgather")
    assert winner == "bfb"
    assert best[0] == lower_bound(parse_topology("torus:4x4"), parse_collective("allgather")).value


def test_a_second_method_is_tried_where_the_first_misses_the_bound(monkeypatch):
    monkeypatch.setattr(auto, "MAX_RANKS_ALL_METHODS", 2)
    assert cost_of("auto", "switch:4,100", "allgather")[1] == "forest"


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
    monkeypatch.setattr(auto, "MAX_RANKS_SECOND_METHOD", 8)
    monkeypatch.setattr(auto, "verify", None)
    assert cost_of("auto", "torus:4x4", "allgather")[1] == "bfb"
