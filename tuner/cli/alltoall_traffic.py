"""`chorale alltoall --traffic`: an all-to-all of given sizes per pair, as mixtures of experts dispatch and combine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from chorale.synth.methods.alltoall.rate import RateMethod
from chorale.synth.methods.traffic.planner import plan_traffic
from chorale.synth.topology.topology import Topology
from chorale.tuner.cli.output import emit_json, people, results
from chorale.tuner.files.schedule_files import save_schedule
from chorale.tuner.files.traffic_files import load_traffic
from chorale.tuner.reports.stopwatch import Stopwatch, peak_memory_bytes
from chorale.tuner.reports.traffic import (
    comparison_document,
    plan_document,
    replan_documents,
    schedule_document,
    traffic_table,
    verified_traffic,
    warnings_of,
)


@dataclass(frozen=True, slots=True)
class TrafficRequest:
    """What to plan: `traffic` and then `following`, each a file or a skew; skews that follow have seeds that follow."""

    traffic: str
    following: Sequence[str]
    seed: int
    transposed: bool
    chunks: int | None
    gap: Fraction
    method: RateMethod | None
    output: str | None


def plan_and_print(topology: Topology, request: TrafficRequest, stages: Stopwatch, as_json: bool) -> None:
    """Plan, verify, compare, plan again, and print all of it; write the first schedule where a file is given."""
    ranks, spec = topology.compute_count, topology.spec
    texts = [request.traffic, *request.following]
    matrices = [load_traffic(text, ranks, spec, request.seed + later) for later, text in enumerate(texts)]
    if request.transposed:
        matrices = [matrix.transposed() for matrix in matrices]
    with stages.stage("plan"):
        plan = plan_traffic(topology, matrices[0], chunks=request.chunks, gap=request.gap, method=request.method)
    with stages.stage("verification"):
        verified = verified_traffic(plan)
    if request.output is not None:
        with stages.stage("writing"):
            save_schedule(verified, request.output)
    with stages.stage("comparison"):
        compared = comparison_document(plan)
    document = plan_document(plan) | {
        "schedule": schedule_document(plan, verified, request.output),
        "compared": compared,
        "replans": replan_documents(plan, matrices[1:], request.gap),
        "warnings": warnings_of(plan),
    }
    for warning in document["warnings"]:
        people.print(f"warning: {warning['message']}", soft_wrap=True)
    seconds = stages.report(outside_total=("topology", "verification", "writing", "comparison"))
    document |= {"seconds": seconds.pop("total"), "stages": seconds, "peak_memory_bytes": peak_memory_bytes()}
    if as_json:
        emit_json(document)
    else:
        results.print(traffic_table(document, topology.bandwidth_unit))
