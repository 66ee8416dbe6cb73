"""The optical testbed of section 8.1: its networks, what they cost by the fit of appendix A.2, and live on a fabric."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from chorale.experiments.live_times import LiveTimes, measure_times
from chorale.experiments.published import published
from chorale.synth.collective import ALLREDUCE
from chorale.synth.executor.serial import SerialExecutor
from chorale.synth.lowering.lower import lower
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.methods.catalog import synthesize
from chorale.synth.methods.method import Options
from chorale.synth.programs.program import Program
from chorale.synth.schedule.traffic import traffic_of
from chorale.synth.simulation.congestion import congestion_of
from chorale.synth.simulation.network_model import NetworkModel
from chorale.synth.topology.spec import parse_topology
from chorale.synth.verify.verified import VerifiedSchedule

OURS, SHIFTED_RING, SHIFTED_BFB_RING, TREES = "ours", "shifted ring", "shifted BFB ring", "double binary tree"
ALPHA_US, FIXED_US, NODE_GBPS = Fraction("13.33"), Fraction("21.60"), 79
"""What the paper fitted to its testbed: microseconds for a step and for a call, Gbit/s out of a node."""
LINKS_OF_A_NODE = 4
SIZES_BYTES: Mapping[str, int] = {"1 KB": 10**3, "1 MB": 10**6, "1 GB": 10**9}
LINK_MBPS = 25
"""Live: a thousandth of the 25 Gbit/s that a link of the testbed has."""
LIVE_SIZES_BYTES: Mapping[str, int] = {"1 KB": 2**10, "1 MB": 2**17, "1 GB": 2**21}
"""What stands for each size there, where a step takes some hundred microseconds: steps decide at the first, bytes at
the last, and rings spend about as long on one as on the other between them."""
TREE_CHUNKS = (1, 16)
"""Live: how far trees cut the data, of which the fastest counts; they stream."""


@dataclass(frozen=True, slots=True)
class Contender:
    """A network with a schedule of allreduce. chunks: ways to cut the data, of which the fastest counts at each size;
    None leaves it to the method."""

    name: str
    spec: str
    method: str
    chunks: tuple[int | None, ...] = (None,)

    def verified(self, chunks: int | None = None) -> VerifiedSchedule:
        """Return the verified schedule with `chunks` chunks per shard."""
        topology = parse_topology(self.spec)
        return synthesize(self.method, topology, ALLREDUCE, Options(chunks=chunks), SerialExecutor())

    def program(self, chunks: int | None) -> Program:
        """Return the program of that schedule for CPUs."""
        return lower(self.verified(chunks), LoweringOptions("oneccl-xml"))


def contenders(nodes: int) -> tuple[Contender, ...]:
    """Return what figure 6 compares on `nodes` nodes: the network of table 5 and its rivals."""
    best = next(row for row in published("5").rows if row.nodes == nodes)
    return (
        Contender(OURS, best.spec, best.method),
        Contender(SHIFTED_RING, f"shiftedring:{nodes}", "hamiltonian-ring"),
        Contender(SHIFTED_BFB_RING, f"shiftedring:{nodes}", "bfb-ring"),
        Contender(TREES, f"dbt:{nodes}", "double-binary-tree", TREE_CHUNKS),
    )


def model_us(verified: VerifiedSchedule, size_bytes: int) -> float:
    """Return the microseconds of an allreduce on the testbed as its fit has them; trees stream in the best way."""
    cost = congestion_of(traffic_of(verified.schedule))
    model = NetworkModel.of(str(ALPHA_US), link_gbps=Fraction(NODE_GBPS, LINKS_OF_A_NODE))
    return float(cost.seconds(model, size_bytes) * 10**6 + FIXED_US)


def measure_contenders(rivals: Sequence[Contender], sizes_bytes: Sequence[int], repeats: int) -> dict[str, LiveTimes]:
    """Return the times of each contender live, by name; those on one network are measured side by side."""
    by_network: dict[str, list[Contender]] = {}
    for rival in rivals:
        by_network.setdefault(rival.spec, []).append(rival)
    found: dict[str, LiveTimes] = {}
    for spec, sharing in by_network.items():
        programs = {f"{one.name} {cut}": one.program(cut) for one in sharing for cut in one.chunks}
        times = measure_times(parse_topology(spec), programs, sizes_bytes, LINK_MBPS, repeats)
        found |= {one.name: times for one in sharing}
    return found


def min_us(times: Mapping[str, LiveTimes], rival: Contender, size_index: int) -> float:
    """Return the shortest time of `rival` at the size in that place, whatever its chunks, in microseconds."""
    return min(times[rival.name].min_us(f"{rival.name} {cut}", size_index) for cut in rival.chunks)
