"""Traces of executions in the format of Perfetto and chrome://tracing."""

import json
from collections.abc import Sequence
from typing import Any

from chorale.runners.api.base import StepSpan
from chorale.synth import Program


def trace_events(program: Program, executions: Sequence[Sequence[StepSpan]], gap_us: float = 1000.0) -> str:
    """Return JSON with the steps of all ranks in `executions`, one execution after the other and `gap_us` apart.

    A rank is a process, a block a thread; times are in microseconds. The same executions give the same text.
    """
    events: list[dict[str, Any]] = []
    for rank, part in enumerate(program.ranks):
        events.append({"ph": "M", "pid": rank, "name": "process_name", "args": {"name": f"rank {rank}"}})
        events.append({"ph": "M", "pid": rank, "name": "process_sort_index", "args": {"sort_index": rank}})
        for number, block in enumerate(part.blocks):
            peers = [f"from {block.recv_peer}"] if block.recv_peer is not None else []
            peers += [f"to {block.send_peer}"] if block.send_peer is not None else []
            name = f"block {number} {' '.join(peers)} channel {block.channel}"
            events.append({"ph": "M", "pid": rank, "tid": number, "name": "thread_name", "args": {"name": name}})
    begin_us = 0.0
    for spans in executions:
        for span in spans:
            step = program.ranks[span.rank].blocks[span.block].instructions[span.step]
            moved_us = max(span.start_s - span.ready_s, 0.0) * 1e6 if span.start_s else 0.0
            times = {
                "ts": round(begin_us + span.ready_s * 1e6, 3),
                "dur": round((span.end_s - span.ready_s) * 1e6, 3),
            }
            facts: dict[str, Any] = {"step": span.step, "part": span.part, "chunks": step.count}
            facts["until_first_byte_us"] = round(moved_us, 3)
            event = {"ph": "X", "pid": span.rank, "tid": span.block, "name": step.op.value}
            events.append({**event, **times, "args": facts})
        begin_us += max(span.end_s for span in spans) * 1e6 + gap_us
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": events}, separators=(",", ":"))
