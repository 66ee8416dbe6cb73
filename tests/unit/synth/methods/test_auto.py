"""The method auto keeps the schedule of lowest proven cost, or least predicted time at a size, and says who made it."""

import random
from contextlib import suppress
from copy import copy
from dataclasses import replace
from fractions import Fraction

import pytest

from chorale.experiments.framework.experiment import synthesized
from chorale.synth.bounds.certificate import check_certificate
from chorale.synth.bounds.lower_bound import bound_of_schedule, lower_bound
from chorale.synth.collective import Collective, parse_collective
from chorale.synth.errors import CheckFailed, InvalidInput
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.methods import auto
from chorale.synth.methods.auto import Auto
from chorale.synth.methods.bfb import bfb as floor
from chorale.synth.methods.bfb.bfb import breadth_first_floor
from chorale.synth.methods.catalog import METHODS, form_of, synthesize, synthesize_unverified
from chorale.synth.methods.method import Options
from chorale.synth.schedule.traffic import traffic_of
from chorale.synth.simulation.simulate import NetworkModel, simulate
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Link, Links, Topology
from chorale.synth.verify.verify import verify


def remade(method, make):
    """Return `method` with `make` in place of its own."""
    other = copy(method)
    other.make = make
    return other


OTHERS = {name: method for name, method in METHODS.items() if name != "auto"}


def limited(spec: str, collective: str = "allgather", named=OTHERS, **limits: int):
    """Return what auto makes where it has other methods or limits."""
    wanted = parse_collective(collective)
    return Auto(named, **limits).schedule(parse_topology(spec), wanted, Options(), SerialExecutor(), None)


def test_an_all_to_all_comes_with_prices_that_prove_more_than_cuts():
    network, alltoall = parse_topology("kautz:2,2"), parse_collective("alltoall")
    verified = synthesized("auto", network, alltoall)
    bound = bound_of_schedule(verified.schedule, verified.cost.time_per_byte)
    assert bound.kind == "alltoall-prices"
    assert check_certificate(network, alltoall, bound.to_json(network)) == bound.value == verified.cost.time_per_byte
    assert bound.value > lower_bound(network, alltoall).value
    with pytest.raises(CheckFailed):
        check_certificate(network, alltoall, bound.to_json(network) | {"time_per_byte": str(bound.value * 2)})


def test_the_only_method_is_tried_once_and_says_itself_what_is_wrong():
    calls = []
    limited("ring:4", "alltoall", OTHERS | {"alltoall": remade(METHODS["alltoall"], calls.append)})
    assert len(calls) == 1
    with pytest.raises(InvalidInput, match="chunks per shard must be 1 to"):
        synthesized("auto", "ring:4", "alltoall", chunks=10**9)


def damaged_bound(**changes):
    """Return network, collective, and the bound of an all-to-all whose certificate was changed."""
    verified = synthesized("auto", "ring:5", "alltoall")
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


def test_large_networks_stop_at_the_lower_bound_and_very_large_ones_take_the_first_method(monkeypatch):
    schedule = limited("torus:4x4", max_ranks_all_methods=8)
    assert schedule.method == "bfb"
    bound = lower_bound(parse_topology("torus:4x4"), parse_collective("allgather")).value
    assert verify(schedule).cost.time_per_byte == bound
    monkeypatch.setattr(auto, "cost_if_sound", None)
    assert limited("torus:4x4", max_ranks_second_method=8).method == "bfb"


def test_options_leave_the_methods_that_obey_them_and_none_is_refused():
    assert synthesized("auto", "torus:3x3", k=1).schedule.method in ("forest", "blink")
    with pytest.raises(InvalidInput, match="no method fits this network, collective and options"):
        synthesized("auto", "ring:4", "allreduce", k=1, chunks=2)


def test_the_form_is_that_of_the_method_that_wins():
    large = parse_topology("torus:66x66")
    forms = {name: form_of("auto", large, parse_collective(name)) for name in ("allgather", "allreduce", "broadcast")}
    assert forms == {"allgather": "symmetric", "allreduce": "symmetric", "broadcast": "columns"}
    assert form_of("auto", large, parse_collective("allgather"), Options(k=1)) == "columns"
    assert form_of("auto", parse_topology("torus:4x4")) == "columns"


@pytest.mark.parametrize("collective", ["allgather", "reduce_scatter", "allreduce"])
def test_trees_come_first_where_breadth_first_broadcast_misses_the_optimum(collective):
    """On meshes the nodes that need most differ from step to step; nobody makes the slower schedule to see that."""
    named = {"bfb": remade(METHODS["bfb"], None), "forest": METHODS["forest"]}
    # What an allreduce could reach at best is not known exactly, so that beyond the largest limit only it ends there.
    limits = {"max_ranks_all_methods": 8, "max_ranks_second_method": 8 if collective == "allreduce" else 1024}
    assert limited("mesh:6x6", collective, named, **limits).method == "forest"


@pytest.mark.parametrize("collective", ["allgather", "reduce_scatter"])
@pytest.mark.parametrize("spec", ["torus:4x4", "kautz:2,2", "scaled(mesh:3x4;link=0-1;factor=1/3)", "genkautz:3,20"])
def test_the_floor_is_no_more_than_what_is_reached(spec, collective, monkeypatch):
    topology = parse_topology(spec)
    least = breadth_first_floor(topology, parse_collective(collective).name)
    assert least is not None
    assert 0 < least <= synthesized("bfb", spec, collective).cost.time_per_byte
    monkeypatch.setattr(floor, "MAX_NODES", 8)  # the floor of some nodes holds for all
    assert breadth_first_floor(topology, parse_collective(collective).name) <= least
    assert breadth_first_floor(parse_topology("switch:4,100"), parse_collective(collective).name) is None


CASES = (
    ("complete:2", "broadcast"), ("dbt:6", "allreduce"), ("hxmesh:1,2x2", "allreduce"), ("uniring:2,4", "allgather"),
    ("scaled(ring:6;link=0-1;factor=1/3)", "broadcast"), ("switch:6,100", "reduce_scatter"), ("diamond", "reduce"),
    ("without(torus:3x4;link=0-1)", "allgather"), ("genkautz:2,7", "reduce_scatter"), ("mesh:3x3", "allreduce"),
)  # fmt: skip


@pytest.mark.parametrize(("spec", "collective"), CASES)
def test_no_method_is_better_than_auto(spec: str, collective: str):
    by_method = {}
    for name in METHODS:
        with suppress(InvalidInput):
            verified = synthesized(name, spec, collective)
            if not verified.schedule.is_in_network:
                by_method[name] = verified.cost.time_per_byte, verified.cost.steps
    assert by_method["auto"] == min(by_method.values())


COLLECTIVES = ("allreduce", "allgather", "reduce_scatter", "broadcast")
SIZES = (4 * 2**10, 64 * 2**10, 2**24)
SPECS = (
    "ring:6", "torus:4x4", "torus:3x4", "mesh:3x3", "hypercube:3", "complete:6", "circulant:12,2,3", "kautz:2,2",
    "genkautz:3,10", "debruijn:2,3", "switch:8,100", "a100:1", "h100:2", "fattree:2", "dragonfly:2,1,1",
    "hyperx:3x3", "bipartite:3", "railclos:2,4,50,2", "without(torus:4x4;link=0-1)", "diamond",
)  # fmt: skip


def drawn(seed: int) -> Topology:
    """Return one of the families with drawn rates and latencies: one for all, one for each kind, or each its own."""
    draw = random.Random(seed)
    base = parse_topology(draw.choice(SPECS))
    variety = draw.choice([1, 3, 100])
    factors = [Fraction(draw.randint(4, 12), 8) for _ in range(variety)]
    latencies = [Fraction(draw.choice([0, 2, 5, 10, 20, 50, 100]), 10**7) for _ in range(variety)]
    unit = 25 if base.bandwidth_unit == "link" else 1
    table, links = base.links, []
    for src, dst, kind in zip(table.src.tolist(), table.dst.tolist(), table.bandwidth_class.tolist(), strict=True):
        which = (src + dst) * 7 % variety if variety > 3 else kind % variety
        links.append(Link(src, dst, table.bandwidths[kind] * unit * factors[which], latencies[which]))
    return Topology(f"{base.spec} {seed}", base.node_ids, base.compute_count, Links.build(links), "GB/s")


def behind(topology: Topology, collective: Collective) -> list[float]:
    """Return for each size by how much auto takes longer than the fastest single method, by simulated times."""
    model = NetworkModel.usual(topology)

    def times(method: str, size_bytes: int | None) -> list[float] | None:
        sizes = SIZES if size_bytes is None else (size_bytes,)
        try:
            options = Options(size_bytes=size_bytes)
            schedule = synthesize_unverified(method, topology, collective, options, SerialExecutor())
        except InvalidInput:
            return None
        return simulate(traffic_of(schedule), model, sizes)

    def at_each_size(method: str) -> list[float]:
        return [(times(method, size) or [0.0])[0] for size in SIZES]

    others = [times(name, None) for name in METHODS if name not in ("auto", "in-network", "one-shot", "bfb")]
    rows = [row for row in others if row is not None]
    rows += [] if times("bfb", None) is None else [at_each_size("bfb")]  # it weighs latencies at the size
    return [chosen / min(column) - 1 for chosen, *column in zip(at_each_size("auto"), *rows, strict=True)]


@pytest.mark.parametrize("seed", [1, 2, 4, 6, 8])
def test_no_single_method_is_faster(seed: int) -> None:
    assert max(behind(drawn(seed), parse_collective(COLLECTIVES[seed % 4]))) <= 0.01


def test_links_of_unit_capacity_need_a_rate() -> None:
    torus, allreduce = parse_topology("torus:4x4"), parse_collective("allreduce")
    with pytest.raises(InvalidInput, match="has no link rates"):
        synthesized("auto", torus, allreduce, size_bytes=4096)
    rated = Options(size_bytes=4096, link_gbps=Fraction(100))
    verified = synthesize("auto", torus, allreduce, rated, SerialExecutor())
    assert verified.schedule.method == "swing-latency"  # it counts 0.1 us a link and 0.3 us a node
