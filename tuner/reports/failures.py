"""Schedules for every single failure of a fabric, planned in advance, and the reports of `chorale failures`."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from rich.table import Table

from chorale.synth.bounds.certificate import check_certificate
from chorale.synth.bounds.lower_bound import bound_of_schedule
from chorale.synth.collective import Collective
from chorale.synth.errors import ChoraleError
from chorale.synth.executor.base import Executor, Progress
from chorale.synth.executor.serial import SerialExecutor
from chorale.synth.methods.catalog import synthesize
from chorale.synth.methods.method import Options
from chorale.synth.topology.failures import Failure, single_failures
from chorale.synth.topology.topology import Topology
from chorale.tuner.reports.tables import ruled_table


@dataclass(frozen=True, slots=True)
class FailurePlan:
    """A verified schedule of the network after a failure: T_B / M and its bound in 1 / bandwidth_unit, seconds taken.

    `failure` is None for the fabric as it is.
    """

    failure: Failure | None
    spec: str
    time_per_byte: Fraction
    lower_bound: Fraction
    chunks_per_shard: int
    height: int
    schedule_id: str
    seconds: float


@dataclass(frozen=True, slots=True)
class NoPlan:
    """A failure without a schedule, and why in one line: the remaining network may be cut in two."""

    failure: Failure | None
    spec: str
    reason: str


_START_OF_PROCESSES_S = 0.5


@dataclass(frozen=True, slots=True)
class _Job:
    topology: Topology
    method: str
    collective: Collective
    options: Options


def plan_failures(
    topology: Topology,
    method: str,
    collective: Collective,
    options: Options,
    executor: Executor,
    progress: Progress | None = None,
) -> list[FailurePlan | NoPlan]:
    """Return a plan for `topology` as it is, then one for every single failure up to symmetry.

    One task of `executor` each, but for the network as it is; each verifies its schedule and checks its bound. Where
    that tells that processes would start for longer than they work, none are started.
    """
    job, failures = _Job(topology, method, collective, options), list(single_failures(topology))
    whole = _plan(job, None)
    is_quick = isinstance(whole, FailurePlan) and whole.seconds * len(failures) < _START_OF_PROCESSES_S
    at_work = SerialExecutor() if is_quick and executor.name == "processes" else executor
    return [whole, *at_work.map(_plan, failures, job, progress)]


def _plan(job: _Job, failure: Failure | None) -> FailurePlan | NoPlan:
    started_s = time.perf_counter()
    spec = failure.spec(job.topology) if failure else job.topology.spec
    try:
        topology = failure.survivor(job.topology) if failure else job.topology
        verified = synthesize(job.method, topology, job.collective, job.options, SerialExecutor())
        bound = bound_of_schedule(verified.schedule, verified.cost.time_per_byte)
        check_certificate(topology, job.collective, bound.to_json(topology))
    except ChoraleError as error:  # one failure without a plan must not hide the plans of the others
        return NoPlan(failure, spec, str(error))
    return FailurePlan(
        failure, spec, verified.cost.time_per_byte, bound.value, verified.schedule.chunks_per_shard,
        verified.schedule.steps, verified.schedule.id, time.perf_counter() - started_s,
    )  # fmt: skip


COLUMNS = (
    "failure", "alike", "spec", "time_per_byte", "algbw", "lower_bound", "gap", "slowdown", "chunks_per_shard",
    "height", "schedule_id", "seconds", "reason",
)  # fmt: skip

_WORST = 20
"""So many failures are shown to people; the JSON document has all of them."""


def failures_document(plans: Sequence[FailurePlan | NoPlan]) -> dict[str, Any]:
    """Return the fabric as it is, all failures in order, and how many have no plan."""
    whole, rows = plans[0], plans[1:]
    intact = whole.time_per_byte if isinstance(whole, FailurePlan) else None
    return {
        "intact": _row(whole, intact),
        "failures": [_row(plan, intact) for plan in rows],
        "without_plan": sum(isinstance(plan, NoPlan) for plan in rows),
    }


def failures_table(document: Mapping[str, Any], unit: str) -> Table:
    """Return the table of the failures that cost most, those without a plan first."""
    ranked = sorted(document["failures"], key=lambda row: -float(Fraction(row["slowdown"] or 10**9)))
    title = f"{len(ranked)} different failures, {document['without_plan']} without a plan"
    table = ruled_table(title=title)
    table.add_column("failure", overflow="fold", min_width=9)
    for name in ("alike", f"algbw\n({unit})", "time\nfactor", "over\noptimum", "chunks", "height", "s"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in [document["intact"], *ranked[:_WORST]]:
        table.add_row(*_cells(row))
    table.caption = "alike: failures that symmetries make of this one; time factor: against the fabric as it is"
    if len(ranked) > _WORST:
        table.caption += f"; the {_WORST} that cost most, --json has all"
    return table


def failures_csv(document: Mapping[str, Any]) -> str:
    """Return the fabric as it is and all failures as a table of comma-separated values, one line each."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows([document["intact"], *document["failures"]])
    return text.getvalue()


def _row(plan: FailurePlan | NoPlan, intact: Fraction | None) -> dict[str, Any]:
    failure = plan.failure
    row: dict[str, Any] = {
        "failure": str(failure) if failure else None,
        "alike": failure.copies if failure else 1,
        "spec": plan.spec,
    }
    if isinstance(plan, NoPlan):
        return row | {"reason": plan.reason, "slowdown": None}
    return row | {
        "time_per_byte": str(plan.time_per_byte),
        "algbw": float(1 / plan.time_per_byte),
        "lower_bound": str(plan.lower_bound),
        "gap": str(plan.time_per_byte / plan.lower_bound - 1),
        "slowdown": None if intact is None else str(plan.time_per_byte / intact),
        "chunks_per_shard": plan.chunks_per_shard,
        "height": plan.height,
        "schedule_id": plan.schedule_id,
        "seconds": plan.seconds,
    }


def _cells(row: Mapping[str, Any]) -> list[str]:
    name = row["failure"] or "none"
    if "reason" in row:
        return [f"{name}: {row['reason']}", str(row["alike"]), *["-"] * 6]
    slowdown = "-" if row["slowdown"] is None else f"{float(Fraction(row['slowdown'])):.3f}"
    gap = f"{100 * float(Fraction(row['gap'])):.2f} %"
    counts = [str(row["chunks_per_shard"]), str(row["height"]), f"{row['seconds']:.2f}"]
    return [name, str(row["alike"]), f"{row['algbw']:.2f}", slowdown, gap, *counts]
