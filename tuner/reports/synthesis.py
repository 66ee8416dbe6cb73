"""A schedule asked for, made, verified and held against the bound: what `chorale synth` and the service do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from synth.bound.bound import lower_bound
from synth.bound.certificate import check_certificate
from synth.collective import Collective
from synth.executor.port import Executor, Progress
from synth.kernels import warm_method
from synth.method import Options
from synth.methods import synthesize_unverified
from synth.topology.topology import Topology
from synth.verify.verified import VerifiedSchedule
from synth.verify.verify import verify
from tuner.reports.stages import Stages
from tuner.reports.synthesis_report import synthesis_document, timing_document

OUTSIDE_TOTAL = ("topology", "compile", "bound", "writing")
"""Stages that do not count in the total of the contract."""


@dataclass(frozen=True, slots=True)
class SynthesisRequest:
    """What is asked for, but for the network."""

    method: str
    collective: Collective
    options: Options


def warm(method: str, stages: Stages) -> None:
    """Compile kernels before the clock of the synthesis runs; the stage is reported only if anything was compiled."""
    stages.compile(lambda: warm_method(method))


def synthesized(
    topology: Topology, request: SynthesisRequest, executor: Executor, progress: Progress | None, stages: Stages
) -> VerifiedSchedule:
    """Return the verified schedule; stages `synthesis` and `verification` take the time of each."""
    options = request.options
    with stages.stage("synthesis"):
        schedule = synthesize_unverified(request.method, topology, request.collective, options, executor, progress)
    with stages.stage("verification"):
        return verify(schedule, options.size_bytes)


def proved(verified: VerifiedSchedule, size_bytes: int | None, stages: Stages) -> dict[str, Any]:
    """Return the JSON document of the contract, but for memory and output; its bound is checked by separate code."""
    schedule = verified.schedule
    with stages.stage("bound"):
        bound = lower_bound(schedule.topology, schedule.collective, verified.cost.time_per_byte)
        check_certificate(schedule.topology, schedule.collective, bound.to_json(schedule.topology))
    document = synthesis_document(verified, bound, stages.report(OUTSIDE_TOTAL))
    if size_bytes is not None:
        document["cost"] |= timing_document(verified, size_bytes)
    return document
