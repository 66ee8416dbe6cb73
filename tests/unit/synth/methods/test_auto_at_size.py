"""With a size, auto takes the method of the least predicted time: no single method is more than 1 % faster."""

import random
from collections.abc import Sequence
from fractions import Fraction

import pytest

from chorale.synth.collective import Collective, parse_collective
from chorale.synth.errors import InvalidInput
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.methods.catalog import METHODS, synthesize, synthesize_unverified
from chorale.synth.methods.method import Options
from chorale.synth.schedule.traffic import traffic_of
from chorale.synth.simulation.flow_simulation import NetworkModel
from chorale.synth.simulation.simulate import simulate
from chorale.synth.topology.links import Link, Links
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology

SIZES = (4 * 2**10, 64 * 2**10, 2**24)
COLLECTIVES = ("allreduce", "allgather", "reduce_scatter", "broadcast")
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


def check(seed: int, collectives: Sequence[str]) -> None:
    topology = drawn(seed)
    for name in collectives:
        found = behind(topology, parse_collective(name))
        assert max(found) <= 0.01, (seed, topology.spec, name, found)


@pytest.mark.parametrize("seed", [1, 2, 4, 6, 8])
def test_no_single_method_is_faster(seed: int) -> None:
    check(seed, [COLLECTIVES[seed % 4]])


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 200, 20))
def test_no_single_method_is_faster_on_two_hundred_networks(first: int) -> None:
    for seed in range(first, first + 20):
        check(seed, COLLECTIVES)


def test_links_of_unit_capacity_need_a_rate() -> None:
    torus, allreduce = parse_topology("torus:4x4"), parse_collective("allreduce")
    with pytest.raises(InvalidInput, match="has no link rates"):
        synthesize("auto", torus, allreduce, Options(size_bytes=4096), SerialExecutor())
    rated = Options(size_bytes=4096, link_gbps=Fraction(100))
    verified = synthesize("auto", torus, allreduce, rated, SerialExecutor())
    assert verified.schedule.method == "swing-latency"  # it counts 0.1 us a link and 0.3 us a node
