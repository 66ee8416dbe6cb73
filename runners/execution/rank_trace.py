"""What the engine says of one execution, as the trace of a rank."""

from __future__ import annotations

from chorale.runners.api.trace import RankTrace, StepSpan
from chorale.runners.engine.library import Execution


def rank_trace(execution: Execution, started_ns: int) -> RankTrace:
    """Return the trace of a rank; `started_ns`: the common start of all ranks on this rank's clock."""
    spans = tuple(
        StepSpan(
            step.block,
            step.step,
            step.part,
            step.piece,
            (step.ready_ns - started_ns) / 1e9,
            (step.start_ns - started_ns) / 1e9 if step.start_ns else 0.0,
            (step.end_ns - started_ns) / 1e9,
        )
        for step in execution.steps
    )
    start_s, end_s = (execution.start_ns - started_ns) / 1e9, (execution.end_ns - started_ns) / 1e9
    return RankTrace(start_s, end_s, execution.cpu_ns / 1e9, spans)
