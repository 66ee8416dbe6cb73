"""No method is ruled out by what it can prove to be better than: floors against the schedules of every method."""

import pytest

from chorale.synth.collective import parse_collective
from chorale.synth.errors import InvalidInput
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.methods.auto import Floors
from chorale.synth.methods.catalog import ALGORITHMS, METHODS, synthesize
from chorale.synth.topology.spec import parse_topology

SPECS = (
    *("complete:2", "ring:4", "ring:5", "hypercube:3", "mesh:2x4", "mesh:3x3", "switch:6,100", "genkautz:2,7"),
    *("scaled(ring:6;link=0-1;factor=1/3)", "hxmesh:1,2x2", "biring:4,4", "dbt:6", "diamond", "uniring:2,4"),
    *("scaled(mesh:3x4;link=0-1;factor=1/3)", "without(torus:3x4;link=0-1)", "torus:3x4"),
)


def costs(spec: str, collective: str):
    """Yield the name and the cost of every method that suits."""
    for name in METHODS:
        try:
            verified = synthesize(name, parse_topology(spec), parse_collective(collective), None, SerialExecutor())
        except InvalidInput:
            continue
        if not verified.schedule.is_in_network:
            yield name, (verified.cost.time_per_byte, verified.cost.steps)


@pytest.mark.parametrize("collective", ["allgather", "reduce_scatter", "allreduce", "broadcast"])
@pytest.mark.parametrize("spec", SPECS)
def test_no_method_is_ruled_out_by_a_cost_that_it_beats(spec: str, collective: str):
    floors = Floors(parse_topology(spec), parse_collective(collective))
    by_method = dict(costs(spec, collective))
    best = min(by_method.values())
    assert by_method["auto"] == best
    for name in set(by_method) - {"auto", "in-network", "one-shot", *ALGORITHMS}:
        time, steps = by_method[name]
        assert floors.least_time(name, time) <= time, name
        assert floors.least_steps(name) <= steps, name
        assert not floors.rules_out(name, (time, steps + 1)), name


def test_what_is_proved_is_used():
    torus, allreduce = parse_topology("torus:4x4"), parse_collective("allreduce")
    time, steps = dict(costs("torus:4x4", "allreduce"))["bfb"]
    floors = Floors(torus, allreduce)
    assert floors.is_optimal(time)
    assert [
        name
        for name in METHODS
        if name not in ("auto", "in-network", "one-shot", *ALGORITHMS) and not floors.rules_out(name, (time, steps))
    ] == []
    assert not floors.rules_out("forest", (time * 2, steps))
