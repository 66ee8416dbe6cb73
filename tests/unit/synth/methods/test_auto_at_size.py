"""With a size, auto takes the method of the least predicted time: no single method is more than 1 % faster."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest

from chorale.synth.collective import Collective, parse_collective
from chorale.synth.errors import InvalidInput
from chorale.synth.executor.serial import SerialExecutor
from chorale.synth.methods.catalog import METHODS, synthesize
from chorale.synth.methods.method import Options
from chorale.synth.schedule.traffic import traffic_of
from chorale.synth.simulation.network_model import NetworkModel
from chorale.synth.simulation.simulate import simulate
from chorale.synth.topology.links import Link, Links
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology

SIZES = (4 * 2**10, 64 * 2**10, 2**20)
COLLECTIVES = ("allreduce", "allgather", "reduce_scatter")
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


def behind(topology: Topology, collective: Collective, size_bytes: int) -> Fraction:
    """Return by how much auto takes longer than the fastest single method."""

    def time_s(method: str) -> Fraction | None:
        try:
            cost = synthesize(method, topology, collective, Options(size_bytes=size_bytes), SerialExecutor()).cost
        except InvalidInput:
            return None
        return cost.time_s

    single = [time_s(name) for name in METHODS if name not in ("auto", "in-network")]
    return time_s("auto") / min(time for time in single if time is not None) - 1


def check(seed: int) -> None:
    collective, topology = parse_collective(COLLECTIVES[seed % 3]), drawn(seed)
    for size_bytes in SIZES:
        assert behind(topology, collective, size_bytes) <= Fraction(1, 100), (seed, topology.spec, size_bytes)


@pytest.mark.parametrize("seed", [1, 2, 4, 6, 8])
def test_no_single_method_is_faster(seed: int) -> None:
    check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 200, 50))
def test_no_single_method_is_faster_on_two_hundred_networks(first: int) -> None:
    for seed in range(first, first + 50):
        check(seed)


def test_links_of_unit_capacity_need_a_rate() -> None:
    torus, allreduce = parse_topology("torus:4x4"), parse_collective("allreduce")
    with pytest.raises(InvalidInput, match="a link rate"):
        synthesize("auto", torus, allreduce, Options(size_bytes=4096), SerialExecutor())
    rated = Options(size_bytes=4096, link_gbps=Fraction(100))
    verified = synthesize("auto", torus, allreduce, rated, SerialExecutor())
    seconds = simulate(traffic_of(verified.schedule), NetworkModel(link_gbps=Fraction(100)), [4096])[0]
    assert seconds == pytest.approx(4096 * 2 * 15 / 16 / (4 * 12.5e9))
