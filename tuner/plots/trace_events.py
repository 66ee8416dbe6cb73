"""Traces of executions in the format of Perfetto and chrome://tracing, beside what the simulation predicted."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from chorale.runners.api.base import ExecutionTrace, StepSpan
from chorale.runners.measurement.critical_path import CriticalPath
from chorale.runners.simulated.program_flows import ProgramTrace
from chorale.synth.programs.program import Program

Event = dict[str, Any]

_PREDICTED = 1_000_000  # processes of predicted ranks are numbered from here


def trace_events(
    program: Program,
    executions: Sequence[tuple[ExecutionTrace, ProgramTrace | None]],
    summary: Sequence[Mapping[str, Any]] = (),
    gap_us: float = 1000.0,
) -> str:
    """Return JSON of the executions, one after the other with `gap_us` between them, each with its prediction.

    A rank is a process, a block a thread; times are in microseconds. Steps on the critical path are marked. `summary`
    goes along as it is. The same traces give the same text.
    """
    events = list(_names(program))
    begin_us = 0.0
    for measured, predicted in executions:
        events += _measured_events(program, measured, begin_us)
        events += [] if predicted is None else _predicted_events(predicted, begin_us)
        end_s = max(measured.time_s, 0.0 if predicted is None else predicted.end_s)
        begin_us += end_s * 1e6 + gap_us
    document = {"displayTimeUnit": "ms", "traceEvents": events, "otherData": {"executions": list(summary)}}
    return json.dumps(document, separators=(",", ":"))


def _names(program: Program) -> Iterator[Event]:
    for rank, part in enumerate(program.ranks):
        for pid, name in ((rank, f"rank {rank}"), (_PREDICTED + rank, f"rank {rank}, predicted")):
            yield {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": name}}
            yield {"ph": "M", "pid": pid, "name": "process_sort_index", "args": {"sort_index": pid}}
        for number, block in enumerate(part.blocks):
            peers = [f"from {block.recv_peer}"] if block.recv_peer is not None else []
            peers += [f"to {block.send_peer}"] if block.send_peer is not None else []
            title = f"block {number} {' '.join(peers)} channel {block.channel}"
            yield {"ph": "M", "pid": rank, "tid": number, "name": "thread_name", "args": {"name": title}}


def _measured_events(program: Program, trace: ExecutionTrace, begin_us: float) -> Iterator[Event]:
    critical = {(one.rank, one.block, one.step) for one in CriticalPath(program, trace).segments()}
    for rank, rank_trace in enumerate(trace.ranks):
        for span in rank_trace.steps:
            event = _step_event(program, rank, span, begin_us)
            event["args"]["critical"] = (rank, span.block, span.step) in critical
            yield event


def _step_event(program: Program, rank: int, span: StepSpan, begin_us: float) -> Event:
    step = program.ranks[rank].blocks[span.block].instructions[span.step]
    moved_us = max(span.start_s - span.ready_s, 0.0) * 1e6 if span.start_s else 0.0
    return {
        "ph": "X",
        "pid": rank,
        "tid": span.block,
        "name": step.op.value,
        "ts": round(begin_us + span.ready_s * 1e6, 3),
        "dur": round((span.end_s - span.ready_s) * 1e6, 3),
        "args": {"step": span.step, "part": span.part, "chunks": step.count, "until_first_byte_us": round(moved_us, 3)},
    }


def _predicted_events(trace: ProgramTrace, begin_us: float) -> Iterator[Event]:
    for row in range(len(trace)):
        start_us, arrived_us = float(trace.start_s[row]) * 1e6, float(trace.arrived_s[row]) * 1e6
        yield {
            "ph": "X",
            "pid": _PREDICTED + int(trace.src[row]),
            "tid": int(trace.block[row]),
            "name": f"to {int(trace.dst[row])}",
            "ts": round(begin_us + start_us, 3),
            "dur": round(arrived_us - start_us, 3),
            "args": {"step": int(trace.step[row]), "chunks": float(trace.chunks[row])},
        }
