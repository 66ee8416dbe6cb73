"""The report of planned traffic: bound, plan, schedule, what it is compared with, and the plans after it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any

from rich.table import Table

from chorale.synth.errors import CheckFailed
from chorale.synth.identity import rational_text
from chorale.synth.methods.traffic.baselines import BASELINES, LIBRARY, baseline_times
from chorale.synth.methods.traffic.certificate import check_traffic_certificate
from chorale.synth.methods.traffic.matrix import TrafficMatrix
from chorale.synth.methods.traffic.planner import TrafficPlan, replan, traffic_schedule
from chorale.synth.verify.verified import VerifiedSchedule
from chorale.synth.verify.verify import verify

_LARGE_GAP = Fraction(1, 100)


def verified_traffic(plan: TrafficPlan) -> VerifiedSchedule:
    """Return the verified schedule of `plan`, whose certificate and time are checked too; CheckFailed for a fault."""
    schedule = traffic_schedule(plan)
    verified = verify(schedule)
    check_traffic_certificate(plan.topology, schedule.certificate)
    moved = verified.cost.time_per_byte / schedule.chunk_part * plan.chunks.chunk
    if moved != plan.time:
        rule = "a schedule must take as long as its plan"
        raise CheckFailed(rule, f"{moved} instead of {plan.time}", "report this: the planner is at fault")
    return verified


def plan_document(plan: TrafficPlan) -> dict[str, Any]:
    """Return what is known of `plan`. Rates are those of a pair with the mean amount, as of an all-to-all."""
    topology, matrix, mean = plan.topology, plan.matrix, plan.matrix.mean
    exact = plan.fluid == plan.bound.time
    return {
        "topology": {"spec": topology.spec, "nodes": topology.compute_count, "id": topology.id},
        "traffic": {
            "name": matrix.name,
            "total": int(matrix.sent.sum()),
            "kept": int(matrix.amounts.trace()),
            "mean": rational_text(mean),
            "largest": int(matrix.sent.max()),
        },
        "rate": float(mean / plan.fluid),
        "lower": float(mean / plan.fluid),
        "upper": float(mean / plan.bound.time),
        "exact": rational_text(mean / plan.fluid) if exact else None,
        "gap": float(plan.fluid / plan.bound.time - 1),
        "time": rational_text(plan.time),
        "time_lower": rational_text(plan.bound.time),
        "method": plan.method,
    }


def schedule_document(plan: TrafficPlan, verified: VerifiedSchedule, output: str | None) -> dict[str, Any]:
    """Return what is known of the schedule of `plan`."""
    schedule, counts = verified.schedule, plan.chunks
    whole = int(counts.counts.sum()) * counts.chunk
    return {
        "rate": float(plan.matrix.mean / plan.time),
        "gap": rational_text(plan.gap),
        "transfers": schedule.transfer_count,
        "hops": schedule.steps,
        "chunks_per_shard": schedule.chunks_per_shard,
        "chunks": int(counts.counts.sum()),
        "chunk": rational_text(counts.chunk),
        "padding": float(whole / int(plan.matrix.amounts.sum()) - 1),
        "id": schedule.id,
        "verified": True,
        "output": output,
    }


def baseline_of(compared: Mapping[str, Mapping[str, float]]) -> str:
    """Return which of what libraries do is the fastest: the baseline."""
    return min(LIBRARY, key=lambda name: compared[name]["time"])


def comparison_document(plan: TrafficPlan) -> dict[str, dict[str, float]]:
    """Return the times of what needs no plan, and how many times that of the plan they are."""
    times = baseline_times(plan)
    return {name: {"time": float(value), "ratio": float(value / plan.time)} for name, value in times.items()}


def replan_documents(plan: TrafficPlan, matrices: Iterable[TrafficMatrix], gap: Fraction) -> list[dict[str, Any]]:
    """Return what is known of plans for `matrices`, each begun with the one before, and what they took."""
    documents = []
    for matrix in matrices:
        wall, processor = time.perf_counter(), time.process_time()
        plan = replan(plan, matrix, gap)
        planned, planned_cpu = time.perf_counter(), time.process_time()
        verified = verified_traffic(plan)
        documents.append(
            {
                "traffic": matrix.name,
                "time": rational_text(plan.time),
                "time_lower": rational_text(plan.bound.time),
                "gap": rational_text(plan.gap),
                "plan_ms": (planned - wall) * 1e3,
                "plan_cpu_ms": (planned_cpu - processor) * 1e3,
                "verify_ms": (time.perf_counter() - planned) * 1e3,
                "transfers": verified.schedule.transfer_count,
                "verified": True,
            }
        )
    return documents


def warnings_of(plan: TrafficPlan) -> list[dict[str, str]]:
    """Return a warning, with a way out, if the schedule is more than 1 % behind the bound."""
    if plan.gap <= _LARGE_GAP:
        return []
    message = f"{float(plan.gap):.2%} behind its bound with {int(plan.chunks.counts.max())} chunks for the largest pair"
    return [{"kind": "bandwidth", "gap": rational_text(plan.gap), "message": f"{message}; try more --chunks"}]


def traffic_table(document: dict[str, Any], unit: str) -> Table:
    """Return the document for people."""
    table = Table(title=f"{document['traffic']['name']} on {document['topology']['spec']}", show_header=False)
    traffic, schedule = document["traffic"], document["schedule"]
    per_link = "link" if unit == "link" else unit
    table.add_row("ranks", str(document["topology"]["nodes"]))
    table.add_row("amounts", f"{traffic['total']} in all, {traffic['largest']} for the largest pair")
    table.add_row("least time", f"{_number(document['time_lower'])} per {per_link}, proven by prices of links")
    behind = Fraction(schedule["gap"])
    exactly = "exactly the least" if behind == 0 else f"{float(behind):.3%} more"
    table.add_row("time of the schedule", f"{_number(document['time'])}, {exactly}")
    table.add_row("schedule", f"{schedule['transfers']} transfers over up to {schedule['hops']} links, verified")
    table.add_row("chunks", f"{schedule['chunks']} of {schedule['chunk']} each, {schedule['padding']:.3%} padding")
    baseline = document["baseline"]
    ratio = document["compared"][baseline]["ratio"]
    table.add_row(f"baseline: {baseline.replace('_', ' ')}", f"{ratio:.2f} x the time: {BASELINES[baseline]}")
    for name, compared in document["compared"].items():
        if name != baseline:
            table.add_row(name.replace("_", " "), f"{compared['ratio']:.2f} x the time: {BASELINES[name]}")
    for again in document["replans"]:
        gap = f"{float(Fraction(again['gap'])):.3%} above its bound"
        table.add_row(f"then {again['traffic']}", f"planned in {again['plan_ms']:.1f} ms, {gap}, verified")
    if schedule["output"] is not None:
        table.add_row("written to", schedule["output"])
    table.add_row("seconds", f"{document['seconds']:.3f}")
    return table


def _number(text: str) -> str:
    return f"{float(Fraction(text)):.6g}"
