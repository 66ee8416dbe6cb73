"""A verified schedule held against the bound, as a document: what `chorale synth` and the service print."""

from __future__ import annotations

from typing import Any

from chorale.synth.bounds.certificate import check_certificate
from chorale.synth.bounds.lower_bound import lower_bound
from chorale.synth.kernels.warm_up import warm_method
from chorale.synth.verify.verified import VerifiedSchedule
from chorale.tuner.reports.stages import Stopwatch
from chorale.tuner.reports.synthesis_report import synthesis_document, timing_document

OUTSIDE_TOTAL = ("topology", "compile", "bound", "writing")
"""Stages that do not count in the total of the contract."""


def warm_kernels(method: str, stages: Stopwatch) -> None:
    """Compile kernels before the clock of the synthesis runs; the stage is reported only if anything was compiled."""
    stages.compile(lambda: warm_method(method))


def proved_document(verified: VerifiedSchedule, size_bytes: int | None, stages: Stopwatch) -> dict[str, Any]:
    """Return the JSON document of the contract, but for memory and output; its bound is checked by separate code."""
    schedule = verified.schedule
    with stages.stage("bound"):
        bound = lower_bound(schedule.topology, schedule.collective, verified.cost.time_per_byte)
        check_certificate(schedule.topology, schedule.collective, bound.to_json(schedule.topology))
    document = synthesis_document(verified, bound, stages.report(OUTSIDE_TOTAL))
    if size_bytes is not None:
        document["cost"] |= timing_document(verified, size_bytes)
    return document
