"""The optical testbed of section 8.1: its networks and schedules, their times by the fit of appendix A.2 and live on a
fabric, and the paper's claims about them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from statistics import fmean

from chorale.experiments.framework.comparison import finding_row, published
from chorale.experiments.framework.experiment import Column, Row, columns, concatenate_rows
from chorale.experiments.framework.live import LiveTimes, measure_times
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
"""Live: the size that replaces each of the paper's. A step takes some hundred microseconds there: steps decide at the
first, bytes at the last, and rings spend about as long on one as on the other between them."""
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
    by_name: dict[str, LiveTimes] = {}
    for spec, sharing in by_network.items():
        programs = {f"{rival.name} {cut}": rival.program(cut) for rival in sharing for cut in rival.chunks}
        times = measure_times(parse_topology(spec), programs, sizes_bytes, LINK_MBPS, repeats)
        by_name |= {rival.name: times for rival in sharing}
    return by_name


def min_us(times: Mapping[str, LiveTimes], rival: Contender, size_index: int) -> float:
    """Return the shortest time of `rival` at the size with that index over its chunks, in microseconds."""
    return min(times[rival.name].min_us(f"{rival.name} {cut}", size_index) for cut in rival.chunks)


SIMULATED, LIVE = "simulated", "live"
SHARED_CORES = (
    "the processes of all ranks share a few cores here, so that short vectors take as long as the cores need for the "
    "messages of all ranks together, and not as long as the steps of one"
)
_REPEATS = 4
_WITHIN = 0.1


@dataclass(frozen=True, slots=True)
class SpeedupClaim:
    """At `size`, `better` takes by the part `printed` less time than `worse`, on average over `nodes`.

    reasons: by where, why that is not reproduced; without one it must be
    """

    size: str
    better: str
    worse: str
    nodes: tuple[int, ...]
    printed: float
    reasons: Mapping[str, str] = field(default_factory=dict)

    def row(self, where: str, times: Mapping[tuple[str, int, str], float]) -> Row:
        """Return the row of the claim; `times` are microseconds by size, nodes and contender."""
        measured = [n for n in self.nodes if (self.size, n, self.better) in times]
        value = fmean(1 - times[self.size, n, self.better] / times[self.size, n, self.worse] for n in measured)
        reached = abs(value - self.printed) <= _WITHIN
        said = "as long as" if self.printed == 0 else f"{self.printed:.0%} less than"
        return finding_row(
            f"{self.better} takes {said} {self.worse}",
            nodes=max(measured),
            value=value,
            verdict="match" if reached else "not reached",
            reason=None if reached else self.reasons.get(where, "not explained"),
            holds=reached or where in self.reasons,
            where=where,
            size=self.size,
            at=measured,
            printed=self.printed,
        )


def simulated_rows(nodes: int, rivals: Sequence[Contender]) -> list[Row]:
    """Return a row for each size of the paper, with the times that the fit of the testbed gives."""
    schedules = {rival.name: rival.verified() for rival in rivals}
    return [
        _row(SIMULATED, nodes, size, {name: model_us(verified, size_bytes) for name, verified in schedules.items()})
        for size, size_bytes in SIZES_BYTES.items()
    ]


def live_rows(nodes: int, rivals: Sequence[Contender]) -> list[Row]:
    """Return a row for each size with the times of a live run."""
    times = measure_contenders(rivals, tuple(LIVE_SIZES_BYTES.values()), _REPEATS)
    facts = {
        "ran_on": {name: time.where for name, time in times.items()},
        "reason": next((time.substitution for time in times.values() if time.substitution), None),
    }
    return [
        _row(LIVE, nodes, size, {rival.name: min_us(times, rival, place) for rival in rivals}) | facts
        for place, size in enumerate(LIVE_SIZES_BYTES)
    ]


def with_claims(claims: Sequence[SpeedupClaim], parts: Sequence[Sequence[Row]]) -> list[Row]:
    """Return the rows of all parts, then the claims beside the simulated and beside the live times."""
    rows = concatenate_rows(parts)
    return [*rows, *(row for where in (SIMULATED, LIVE) for row in _claim_rows(where, claims, rows))]


def _claim_rows(where: str, claims: Sequence[SpeedupClaim], rows: Sequence[Row]) -> list[Row]:
    of_place = [row for row in rows if row["where"] == where]
    times = {(row["size"], row["nodes"], name): us for row in of_place for name, us in row["us"].items()}
    return [claim.row(where, times) for claim in claims] if times else []


def _row(where: str, nodes: int, size: str, us: Mapping[str, float]) -> dict[str, object]:
    size_bytes = (SIZES_BYTES if where == SIMULATED else LIVE_SIZES_BYTES)[size]
    return {
        "kind": "times", "where": where, "nodes": nodes, "spec": "", "size": size, "size_bytes": size_bytes, "us": us,
        "reason": None, "holds": True,
    }  # fmt: skip


def times_text(row: Row) -> str:
    """Return the times of a row for people."""
    return ", ".join(f"{name} {us:.5g}" for name, us in row.get("us", {}).items())


COLUMNS = columns("where, nodes, size", Column("us", times_text), "finding, ours=value:+.0%, reason")
