"""Traces of executions and of simulated schedules in the format of Perfetto and chrome://tracing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chorale.runners.api.base import ExecutionTrace
from chorale.runners.measurement.critical_path import CriticalPath
from chorale.runners.simulated.program_flows import ProgramTrace
from chorale.synth.errors import InvalidInput
from chorale.synth.programs.program import Program
from chorale.synth.schedule.traffic import Traffic
from chorale.synth.simulation.flow_simulation import (
    FlowTimes,
    MessageGraph,
    pipelined_flows,
    simulate_flows,
    stepped_flows,
)
from chorale.synth.simulation.network_model import NetworkModel

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
            step = program.ranks[rank].blocks[span.block].instructions[span.step]
            moved_us = max(span.start_s - span.ready_s, 0.0) * 1e6 if span.start_s else 0.0
            yield {
                "ph": "X",
                "pid": rank,
                "tid": span.block,
                "name": step.op.value,
                "ts": round(begin_us + span.ready_s * 1e6, 3),
                "dur": round((span.end_s - span.ready_s) * 1e6, 3),
                "args": {
                    "step": span.step,
                    "part": span.part,
                    "chunks": step.count,
                    "until_first_byte_us": round(moved_us, 3),
                    "critical": (rank, span.block, span.step) in critical,
                },
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


MAX_EVENTS = 200_000
TRACE_CHUNKS = 16
"""Into how many chunks trees cut what they stream, unless told otherwise."""


@dataclass(frozen=True, slots=True, eq=False)
class _Stream:
    """The messages of one stream: their graph and times, the step of each, and when the stream begins."""

    graph: MessageGraph
    times: FlowTimes
    step: NDArray[np.int64]
    begin_s: float


def schedule_trace(
    traffic: Traffic, network: NetworkModel, size_bytes: int, pipeline_chunks: int = TRACE_CHUNKS
) -> str:
    """Return JSON of the flow-level simulation of a collective of `size_bytes`: an event for each message.

    A sender is a process, each of its receivers a thread; times are in microseconds, from when a message may start to
    when its last byte arrives. The same arguments give the same text. InvalidInput for more than `MAX_EVENTS`
    messages, and for what the flow model does not take. Cost: that of the simulation.
    """
    messages = sum(len(step.route) for step in traffic.steps) * (pipeline_chunks if traffic.kind == "pipelined" else 1)
    if messages > MAX_EVENTS:
        rule = f"a trace has at most {MAX_EVENTS} messages"
        raise InvalidInput(rule, messages, "take fewer ranks, or fewer --pipeline-chunks")
    events: list[Event] = []
    begin_s = 0.0
    for stream in traffic.streams():
        simulated = _simulated(stream, network, size_bytes, pipeline_chunks, begin_s)
        events += _schedule_events(stream, simulated, size_bytes / _amounts(stream, pipeline_chunks))
        begin_s += simulated.times.end_s
    other = {"spec": traffic.topology.spec, "collective": traffic.collective.name.value, "size_bytes": size_bytes}
    document = {
        "displayTimeUnit": "ns",
        "traceEvents": [*_schedule_names(traffic, events), *events],
        "otherData": {**other, "time_us": begin_s * 1e6},
    }
    return json.dumps(document, separators=(",", ":"))


def _amounts(traffic: Traffic, chunks: int) -> int:
    return traffic.denominator * (chunks if traffic.kind == "pipelined" else 1)


def _simulated(traffic: Traffic, network: NetworkModel, size_bytes: int, chunks: int, begin_s: float) -> _Stream:
    is_pipelined = traffic.kind == "pipelined"
    graph = pipelined_flows(traffic, chunks) if is_pipelined else stepped_flows(traffic)
    times = simulate_flows(graph, traffic.topology, network, size_bytes / _amounts(traffic, chunks))
    if bool(np.isnan(times.arrived_s).any()):
        rule = "a trace takes no trees that cross switches in opposite directions in one step"
        raise InvalidInput(rule, traffic.topology.spec, "take another method")
    counts = [len(step.route) for step in traffic.steps]
    step = np.tile(np.repeat(np.arange(len(counts)), counts), chunks if is_pipelined else 1)
    return _Stream(graph, times, step, begin_s)


def _schedule_events(traffic: Traffic, stream: _Stream, bytes_per_amount: float) -> Iterator[Event]:
    graph, times, links = stream.graph, stream.times, traffic.topology.links
    sender = graph.routes.sources(links)[graph.route].tolist()
    receiver = graph.routes.destinations(links)[graph.route].tolist()
    starts = np.flatnonzero(graph.effect >= graph.gates)  # each message waits for exactly one gate
    started_s = np.zeros(graph.messages)
    started_s[graph.effect[starts] - graph.gates] = times.opened_s[graph.cause[starts]]
    for message in np.argsort(started_s, kind="stable").tolist():
        start_us = (stream.begin_s + started_s[message]) * 1e6
        end_us = (stream.begin_s + times.arrived_s[message]) * 1e6
        step = int(stream.step[message])
        size = round(float(graph.amount[message]) * bytes_per_amount, 3)
        yield {
            "ph": "X",
            "pid": sender[message],
            "tid": receiver[message],
            "name": f"step {step + 1}",
            "ts": round(start_us, 4),
            "dur": round(end_us - start_us, 4),
            "args": {"step": step, "bytes": size},
        }


def _schedule_names(traffic: Traffic, events: list[Event]) -> Iterator[Event]:
    ids, ranks = traffic.topology.node_ids, traffic.topology.compute_count
    for pid in sorted({event["pid"] for event in events}):
        kind = "rank" if pid < ranks else "switch"
        yield {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": f"{kind} {ids[pid]}"}}
        yield {"ph": "M", "pid": pid, "name": "process_sort_index", "args": {"sort_index": pid}}
    for pid, tid in sorted({(event["pid"], event["tid"]) for event in events}):
        yield {"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": f"to {ids[tid]}"}}
