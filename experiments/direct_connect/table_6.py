"""Table 6 and figure 10: BFB on hypercubes and 2D tori, how long it takes to make and how good it is."""

from __future__ import annotations

import time
from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from pathlib import Path

from chorale.experiments.framework.experiment import Column, Experiment, Row
from chorale.synth.collective import ALLGATHER
from chorale.synth.executor.serial import SerialExecutor
from chorale.synth.finder.candidate import least_bandwidth_factor
from chorale.synth.methods.catalog import synthesize_unverified
from chorale.synth.schedule.schedule import AnySchedule
from chorale.synth.topology.distance import diameter
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology
from chorale.synth.verify.verify import verify

_PRINTED_S = (
    ("hypercube:2", "<0.01"), ("hypercube:3", "<0.01"), ("hypercube:4", "<0.01"), ("hypercube:5", "0.03"),
    ("hypercube:6", "0.17"), ("hypercube:10", "52.7"),
    ("torus:2x2", "<0.01"), ("torus:3x3", "<0.01"), ("torus:4x4", "<0.01"), ("torus:5x5", "0.01"),
    ("torus:6x6", "0.03"), ("torus:50x50", "61.1"),
)  # fmt: skip
_QUICK_NODES = 100
_WARM_UP = "hypercube:3"


def _cases(quick: bool) -> Sequence[tuple[str, str]]:
    """Return specs and printed seconds."""
    return [one for one in _PRINTED_S if not quick or parse_topology(one[0]).compute_count <= _QUICK_NODES]


def _rows(case: tuple[str, str]) -> list[Row]:
    _warm_up()
    return [_row(*case)]


@cache
def _warm_up() -> None:
    """Load compiled code once, before the clock starts."""
    _timed(parse_topology(_WARM_UP))


def _timed(topology: Topology) -> tuple[AnySchedule, float]:
    begun = time.perf_counter()
    schedule = synthesize_unverified("bfb", topology, ALLGATHER, None, SerialExecutor())
    return schedule, time.perf_counter() - begun


def _row(spec: str, printed_s: str) -> Row:
    """Compare quality, which the paper proves and figure 10 shows, exactly; seconds are of one core, as they come."""
    topology = parse_topology(spec)
    schedule, seconds = _timed(topology)
    cost = verify(schedule).cost
    optimal = cost.bandwidth_factor == least_bandwidth_factor(topology.compute_count)
    least = diameter(topology)
    most_s = float(printed_s.lstrip("<"))
    return {
        "nodes": topology.compute_count,
        "spec": spec,
        "printed_s": printed_s,
        "seconds": seconds,
        "steps": cost.steps,
        "least_steps": least,
        "bandwidth_factor": str(cost.bandwidth_factor),
        "least_factor": str(least_bandwidth_factor(topology.compute_count)),
        "verdict": {
            "quality": "match" if optimal and cost.steps == least else "worse",
            "seconds": "match" if seconds <= most_s else "not reached",
        },
        "reason": None if seconds <= most_s else "one core of a machine that may be busy; the paper used many cores",
        "holds": optimal and cost.steps == least,
    }


def _plot(rows: Sequence[Row], path: Path) -> None:
    """Draw figure 10: what the schedules cost beside the least, a panel for each family and cost."""
    from chorale.experiments.framework.plots import plot_panels  # noqa: PLC0415 (matplotlib is slow)

    keys = {"T_L": ("steps", "least_steps"), "T_B in M/B": ("bandwidth_factor", "least_factor")}
    panels = {
        f"{family}, {cost}": {
            name: [(row["nodes"], float(Fraction(row[key]))) for row in rows if row["spec"].startswith(f"{family}:")]
            for name, key in zip(("BFB", "least"), pair, strict=True)
        }
        for family in ("hypercube", "torus")
        for cost, pair in keys.items()
    }
    plot_panels(panels, "N", "", path, "flat")


EXPERIMENT = Experiment(
    name="direct-connect-table-6",
    question="Is BFB optimal on hypercubes and 2D tori, and how long does it take beside the printed seconds?",
    source="Zhao et al., Efficient Direct-Connect Topologies for Collective Communications, long version, table 6 and "
    "figure 10",
    columns=(
        Column("nodes", lambda row: str(row["nodes"])),
        Column("spec", lambda row: str(row["spec"])),
        Column("printed s", lambda row: str(row["printed_s"])),
        Column("our s", lambda row: f"{row['seconds']:.3g}"),
        Column("T_L", lambda row: str(row["steps"])),
        Column("T_B (M/B)", lambda row: str(row["bandwidth_factor"])),
        Column("reason", lambda row: row["reason"] or ""),
    ),
    cases=_cases,
    evaluate=_rows,
    alone=True,
    plot=_plot,
)
