"""Schedules for every single failure of a fabric, planned before it happens."""

from __future__ import annotations

import time
from dataclasses import dataclass
from fractions import Fraction

from chorale.synth.bounds.certificate import check_certificate
from chorale.synth.bounds.lower_bound import lower_bound
from chorale.synth.collective import Collective
from chorale.synth.errors import ChoraleError
from chorale.synth.executor.base import Executor, Progress
from chorale.synth.executor.serial import SerialExecutor
from chorale.synth.methods.catalog import synthesize
from chorale.synth.methods.method import Options
from chorale.synth.topology.failures import Failure, single_failures
from chorale.synth.topology.topology import Topology


@dataclass(frozen=True, slots=True)
class FailurePlan:
    """A verified schedule of what a failure leaves: T_B / M and its bound in 1 / bandwidth_unit, seconds it took.

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
    """A failure for which there is no schedule, in one line why: the rest may be cut in two."""

    failure: Failure | None
    spec: str
    reason: str


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
    """Return a plan for `topology` as it is, then one for every single failure that is truly different.

    One task of `executor` each; every schedule is verified and its bound checked where it is made.
    """
    tasks = [None, *single_failures(topology)]
    return executor.map(_plan, tasks, _Job(topology, method, collective, options), progress)


def _plan(job: _Job, failure: Failure | None) -> FailurePlan | NoPlan:
    started_s = time.perf_counter()
    spec = failure.spec(job.topology) if failure else job.topology.spec
    try:
        topology = failure.survivor(job.topology) if failure else job.topology
        verified = synthesize(job.method, topology, job.collective, job.options, SerialExecutor())
        bound = lower_bound(topology, job.collective, verified.cost.time_per_byte)
        check_certificate(topology, job.collective, bound.to_json(topology))
    except ChoraleError as error:  # one failure without a plan must not hide the plans of the others
        return NoPlan(failure, spec, str(error))
    return FailurePlan(
        failure, spec, verified.cost.time_per_byte, bound.value, verified.schedule.chunks_per_shard,
        verified.schedule.steps, verified.schedule.id, time.perf_counter() - started_s,
    )  # fmt: skip
