"""Switches that add as processes on emulated links: real bytes, against ranks alone, with the bound beside."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from chorale.experiments.framework.experiment import Column, Experiment, Row
from chorale.runners.api.base import RunFailure, RunRequest
from chorale.runners.api.units import format_size
from chorale.runners.local.runner import LocalRunner
from chorale.synth.bounds.in_network import in_network_bound
from chorale.synth.bounds.lower_bound import lower_bound
from chorale.synth.collective import ALLREDUCE
from chorale.synth.errors import Unavailable
from chorale.synth.executor.serial import SerialExecutor
from chorale.synth.lowering.lower import lower
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.methods.catalog import synthesize
from chorale.synth.programs.program import Program
from chorale.synth.schedule.transforms import pipeline_split
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology
from chorale.synth.verify.verify import verify

SIZE_BYTES = 2**20
DEPTHS = {"in-network": 16, "forest": 1}
"""Into how many parts transfers are cut: sums through switches stream, and lose their first and last part."""


@dataclass(frozen=True, slots=True)
class _Live:
    spec: str
    what: str
    link_mbps: float

    def __str__(self) -> str:
        return self.spec


CASES = (
    _Live("able(switch:4,1)", "one switch; a parameter server, or a SmartNIC, is the same", 20),
    _Live("able(switch:8,1)", "one switch", 10),
    _Live("railclos:2,4,225,4", "two boxes on rails", 20),
)


def _rows(case: _Live) -> list[Row]:
    topology = parse_topology(case.spec)
    programs = {method: _program(topology, method, depth) for method, depth in DEPTHS.items()}
    request = RunRequest(topology, programs, (SIZE_BYTES,), repeats=7, timeout_s=240)
    with LocalRunner(case.link_mbps, probe=False) as runner:
        outcome = runner.submit(request)
    if isinstance(outcome, RunFailure):
        raise Unavailable("the experiment needs the local runner", outcome.message, "see `chorale doctor`")
    [acting], [alone] = (outcome.results[name] for name in DEPTHS)
    ratios = sorted(slow / fast for slow, fast in zip(alone.times_s, acting.times_s, strict=True))
    bound = in_network_bound(topology, ALLREDUCE)
    assert bound is not None
    allowed = float(lower_bound(topology, ALLREDUCE).value / bound.value)
    full = float(bound.value * max(topology.links.bandwidths))  # of the time of the vector on the fastest link
    least_s = full * acting.size_bytes * 8 / (case.link_mbps * 1e6)
    return [{
        "spec": case.spec,
        "what": case.what,
        "size_bytes": acting.size_bytes,
        "link_mbps": case.link_mbps,
        "switches": outcome.environment["switches"],
        "in_network_s": acting.median_s,
        "alone_s": alone.median_s,
        "ratio": median(ratios),
        "ratio_interval": [ratios[0], ratios[-1]],  # of seven, so that it has 98 % of the median
        "ratio_of_bounds": allowed,
        "of_bound": least_s / acting.median_s,
        "correct": bool(acting.correct and alone.correct),
        "reason": None,
        "holds": bool(acting.correct and alone.correct) and median(ratios) > 1,
    }]  # fmt: skip


def _program(topology: Topology, method: str, depth: int) -> Program:
    schedule = synthesize(method, topology, ALLREDUCE, None, SerialExecutor()).schedule.expand()
    return lower(verify(pipeline_split(schedule, depth)), LoweringOptions("oneccl-xml"))


EXPERIMENT = Experiment(
    name="in-network-live",
    question="Does an allreduce whose sums are made in switches beat ranks alone where it is executed?",
    source="ours; the local runner, 1 MiB of float32, every element compared",
    columns=(
        Column("network", lambda row: str(row["spec"])),
        Column("size", lambda row: format_size(row["size_bytes"])),
        Column("in switches, ms", lambda row: f"{row['in_network_s'] * 1e3:.0f}"),
        Column("ranks alone, ms", lambda row: f"{row['alone_s'] * 1e3:.0f}"),
        Column("ratio", lambda row: f"{row['ratio']:.2f} ({row['ratio_interval'][0]:.2f} to "
               f"{row['ratio_interval'][1]:.2f})"),
        Column("ratio of bounds", lambda row: f"{row['ratio_of_bounds']:.2f}"),
        Column("of the bound", lambda row: f"{row['of_bound']:.0%}"),
        Column("right", lambda row: "yes" if row["correct"] else "NO"),
    ),
    cases=lambda quick: CASES[:1] if quick else CASES,
    evaluate=_rows,
    alone=True,
)  # fmt: skip
