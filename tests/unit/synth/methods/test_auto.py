"""The method auto keeps the schedule of lowest proven cost, and says which method made it."""

from copy import copy
from dataclasses import replace

import pytest

from chorale.synth.bounds.certificate import check_certificate
from chorale.synth.bounds.lower_bound import bound_of_schedule, lower_bound
from chorale.synth.collective import CollectiveName, parse_collective
from chorale.synth.errors import CheckFailed, InvalidInput
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.methods import auto
from chorale.synth.methods.auto import Auto
from chorale.synth.methods.bfb import bfb as floor
from chorale.synth.methods.bfb.bfb import breadth_first_floor
from chorale.synth.methods.catalog import METHODS, form_of, synthesize
from chorale.synth.methods.method import Options
from chorale.synth.topology.spec import parse_topology
from chorale.synth.verify.verify import verify


def cost_of(method: str, spec: str, collective: str, options: Options | None = None):
    verified = synthesize(method, parse_topology(spec), parse_collective(collective), options, SerialExecutor())
    return (verified.cost.time_per_byte, verified.cost.steps), verified.schedule.method


def remade(method, make):
    """Return `method` with `make` in place of its own."""
    other = copy(method)
    other.make = make
    return other


def limited(spec: str, **limits: int):
    """Return what auto makes of an allgather where it has other limits."""
    named = {name: method for name, method in METHODS.items() if name != "auto"}
    method = Auto(named, **limits)
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


def test_an_all_to_all_comes_with_prices_that_prove_more_than_cuts():
    network, alltoall = parse_topology("kautz:2,2"), parse_collective("alltoall")
    verified = synthesize("auto", network, alltoall, None, SerialExecutor())
    bound = bound_of_schedule(verified.schedule, verified.cost.time_per_byte)
    assert bound.kind == "alltoall-prices"
    assert check_certificate(network, alltoall, bound.to_json(network)) == bound.value == verified.cost.time_per_byte
    assert bound.value > lower_bound(network, alltoall).value
    with pytest.raises(CheckFailed):
        check_certificate(network, alltoall, bound.to_json(network) | {"time_per_byte": str(bound.value * 2)})


def test_the_only_method_is_tried_once_and_says_itself_what_is_wrong():
    calls = []
    only = remade(METHODS["alltoall"], calls.append)
    named = {name: method for name, method in METHODS.items() if name != "auto"} | {"alltoall": only}
    ring, alltoall = parse_topology("ring:4"), parse_collective("alltoall")
    Auto(named).schedule(ring, alltoall, Options(), SerialExecutor(), None)
    assert len(calls) == 1
    with pytest.raises(InvalidInput, match="chunks per shard must be 1 to"):
        synthesize("auto", ring, alltoall, Options(chunks=10**9), SerialExecutor())


def damaged_bound(**changes):
    """Return network, collective, and the bound of an all-to-all whose certificate was changed."""
    verified = synthesize("auto", parse_topology("ring:5"), parse_collective("alltoall"), None, SerialExecutor())
    schedule = verified.schedule
    changed = replace(schedule, certificate={**schedule.certificate, **changes})
    return schedule.topology, schedule.collective, bound_of_schedule(changed, verified.cost.time_per_byte)


@pytest.mark.parametrize("changes", [{"prices": None}, {"rate_upper": "0"}, {"rate_upper": "x"}])
def test_a_certificate_that_cannot_be_read_is_no_bound(changes):
    network, collective, bound = damaged_bound(**changes)
    assert check_certificate(network, collective, bound.to_json(network)) == bound.value


@pytest.mark.parametrize("changes", [{"prices": ["a"] * 10}, {"rate_upper": "1/1000"}])
def test_a_certificate_that_proves_less_than_it_says_is_refused(changes):
    network, collective, bound = damaged_bound(**changes)
    with pytest.raises(CheckFailed):
        check_certificate(network, collective, bound.to_json(network))


def test_large_networks_stop_at_the_lower_bound():
    schedule = limited("torus:4x4", max_ranks_all_methods=8)
    assert schedule.method == "bfb"
    bound = lower_bound(parse_topology("torus:4x4"), parse_collective("allgather")).value
    assert verify(schedule).cost.time_per_byte == bound


def test_options_leave_the_methods_that_obey_them():
    assert cost_of("auto", "torus:3x3", "allgather", Options(k=1))[1] in ("forest", "blink")


def test_nothing_that_suits_is_refused():
    with pytest.raises(InvalidInput, match="no method fits this network, collective and options"):
        cost_of("auto", "ring:4", "allreduce", Options(k=1, chunks=2))


def test_the_form_is_that_of_the_method_that_wins():
    large = parse_topology("torus:66x66")
    forms = {name: form_of("auto", large, parse_collective(name)) for name in ("allgather", "allreduce", "broadcast")}
    assert forms == {"allgather": "symmetric", "allreduce": "symmetric", "broadcast": "columns"}
    assert form_of("auto", large, parse_collective("allgather"), Options(k=1)) == "columns"
    assert form_of("auto", parse_topology("torus:4x4")) == "columns"


def test_very_large_networks_take_the_first_method(monkeypatch):
    monkeypatch.setattr(auto, "cost_if_sound", None)
    assert limited("torus:4x4", max_ranks_second_method=8).method == "bfb"


@pytest.mark.parametrize("collective", ["allgather", "reduce_scatter", "allreduce"])
def test_trees_come_first_where_breadth_first_broadcast_misses_the_optimum(collective):
    """On meshes the nodes that need most differ from step to step; nobody makes the slower schedule to see that."""
    named = {name: method for name, method in METHODS.items() if name in ("bfb", "forest")}
    named["bfb"] = remade(named["bfb"], None)
    # What an allreduce could reach at best is not known exactly, so that beyond the largest limit only it ends there.
    limits = {"max_ranks_all_methods": 8, "max_ranks_second_method": 8 if collective == "allreduce" else 1024}
    mesh, target = parse_topology("mesh:6x6"), parse_collective(collective)
    made = Auto(named, **limits).schedule(mesh, target, Options(), SerialExecutor(), None)
    assert made.method == "forest"


def test_a_fastest_breadth_first_broadcast_is_not_compared():
    named = {name: remade(method, None) for name, method in METHODS.items() if name != "auto"}
    named["bfb"] = METHODS["bfb"]
    made = Auto(named).schedule(
        parse_topology("torus:3x3"), parse_collective("allgather"), Options(), SerialExecutor(), None
    )
    assert made.method == "bfb"


@pytest.mark.parametrize("collective", ["allgather", "reduce_scatter"])
@pytest.mark.parametrize(
    "spec", ["torus:4x4", "mesh:3x5", "mesh:4x4", "kautz:2,2", "ring:5", "without(torus:4x4;link=0-1)", "genkautz:3,20"]
)
def test_the_floor_is_no_more_than_what_is_reached(spec, collective):
    topology = parse_topology(spec)
    least = breadth_first_floor(topology, parse_collective(collective).name)
    (reached, _), _ = cost_of("bfb", spec, collective)
    assert least is not None
    assert 0 < least <= reached
    assert breadth_first_floor(parse_topology("switch:4,100"), parse_collective(collective).name) is None


def test_the_floor_of_some_nodes_holds_for_all(monkeypatch):
    topology = parse_topology("mesh:6x6")
    whole = breadth_first_floor(topology, CollectiveName.ALLGATHER)
    monkeypatch.setattr(floor, "MAX_NODES", 8)
    assert breadth_first_floor(topology, CollectiveName.ALLGATHER) <= whole
