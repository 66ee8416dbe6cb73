"""Traces of executions and of simulated schedules in the format of Perfetto and chrome://tracing."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from chorale.runners.api.base import StepSpan
from chorale.synth import InvalidInput, NetworkModel, Program
from chorale.synth.schedule.traffic import Traffic
from chorale.synth.simulation.simulate import FlowTimes, pipelined_flows, simulate_flows, stepped_flows

Event = dict[str, Any]
MAX_EVENTS = 200_000
TRACE_CHUNKS = 16
"""Default number of chunks into which trees divide their data for streaming."""


def _span(at: tuple[int, int], name: str, begin_us: float, length_us: float, digits: int, **args: Any) -> Event:
    times = {"ts": round(begin_us, digits), "dur": round(length_us, digits)}
    return {"ph": "X", "pid": at[0], "tid": at[1], "name": name, **times, "args": args}


def _process(pid: int, name: str) -> Iterator[Event]:
    yield {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": name}}
    yield {"ph": "M", "pid": pid, "name": "process_sort_index", "args": {"sort_index": pid}}


def _thread(pid: int, tid: int, name: str) -> Event:
    return {"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": name}}


def trace_events(program: Program, executions: Sequence[Sequence[StepSpan]], gap_us: float = 1000.0) -> str:
    """Return JSON with the steps of all ranks in `executions`, one execution after the other and `gap_us` apart.

    A rank is a process, a block a thread; times are in microseconds. The same executions give the same text.
    """
    events: list[Event] = []
    for rank, part in enumerate(program.ranks):
        events += _process(rank, f"rank {rank}")
        for number, block in enumerate(part.blocks):
            peers = [f"from {block.recv_peer}"] if block.recv_peer is not None else []
            peers += [f"to {block.send_peer}"] if block.send_peer is not None else []
            events.append(_thread(rank, number, f"block {number} {' '.join(peers)} channel {block.channel}"))
    begin_us = 0.0
    for spans in executions:
        for span in spans:
            step = program.ranks[span.rank].blocks[span.block].instructions[span.step]
            moved_us = max(span.start_s - span.ready_s, 0.0) * 1e6 if span.start_s else 0.0
            ready_us, length_us = span.ready_s * 1e6, (span.end_s - span.ready_s) * 1e6
            events.append(_span(
                (span.rank, span.block), step.op.value, begin_us + ready_us, length_us, 3,
                step=span.step, part=span.part, chunks=step.count, until_first_byte_us=round(moved_us, 3),
            ))  # fmt: skip
        begin_us += max(span.end_s for span in spans) * 1e6 + gap_us
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": events}, separators=(",", ":"))


def schedule_trace(
    traffic: Traffic, network: NetworkModel, size_bytes: int, pipeline_chunks: int = TRACE_CHUNKS
) -> str:
    """Simulate a collective on `size_bytes` with the flow model. Return JSON with an event for each message.

    A sender is a process, each of its receivers a thread. Times are in microseconds, from when a message may start to
    when its last byte arrives. The same arguments give the same text. Raises InvalidInput for more than `MAX_EVENTS`
    messages, and for schedules that the flow model does not support. Takes as long as the simulation.
    """
    chunks = pipeline_chunks if traffic.kind == "pipelined" else 1
    messages = sum(len(step.route) for step in traffic.steps) * chunks
    if messages > MAX_EVENTS:
        rule = f"a trace has at most {MAX_EVENTS} messages"
        raise InvalidInput(rule, messages, "use fewer ranks, or fewer --pipeline-chunks")
    spans: list[Event] = []
    begin_s = 0.0
    for stream in traffic.streams():
        times = _add_spans(spans, stream, network, size_bytes, pipeline_chunks, begin_s)
        begin_s += times.end_s
    ids, ranks = traffic.topology.node_ids, traffic.topology.compute_count
    events: list[Event] = []
    for pid in sorted({event["pid"] for event in spans}):
        events += _process(pid, f"{'rank' if pid < ranks else 'switch'} {ids[pid]}")
    for pid, tid in sorted({(event["pid"], event["tid"]) for event in spans}):
        events.append(_thread(pid, tid, f"to {ids[tid]}"))
    other = {"spec": traffic.topology.spec, "collective": traffic.collective.name.value, "size_bytes": size_bytes}
    document = {
        "displayTimeUnit": "ns",
        "traceEvents": [*events, *spans],
        "otherData": {**other, "time_us": begin_s * 1e6},
    }
    return json.dumps(document, separators=(",", ":"))


def _add_spans(
    spans: list[Event], traffic: Traffic, network: NetworkModel, size_bytes: int, pipeline_chunks: int, begin_s: float
) -> FlowTimes:
    """Append the events of `traffic`, which starts at `begin_s` seconds, to `spans`; return its simulated times."""
    is_pipelined, links = traffic.kind == "pipelined", traffic.topology.links
    chunks = pipeline_chunks if is_pipelined else 1
    graph = pipelined_flows(traffic, chunks) if is_pipelined else stepped_flows(traffic)
    bytes_per_amount = size_bytes / (traffic.denominator * chunks)
    times = simulate_flows(graph, traffic.topology, network, bytes_per_amount)
    if bool(np.isnan(times.arrived_s).any()):
        rule = "this schedule crosses switches in opposite directions in one step and cannot be traced: {}"
        raise InvalidInput(rule, traffic.topology.spec, "take another method")
    counts = [len(step.route) for step in traffic.steps]
    step_of = np.tile(np.repeat(np.arange(len(counts)), counts), chunks).tolist()
    sender = graph.routes.sources(links)[graph.route].tolist()
    receiver = graph.routes.destinations(links)[graph.route].tolist()
    starts = np.flatnonzero(graph.effect >= graph.gates)  # each message waits for exactly one gate
    started_s = np.zeros(graph.messages)
    started_s[graph.effect[starts] - graph.gates] = times.opened_s[graph.cause[starts]]
    for message in np.argsort(started_s, kind="stable").tolist():
        start_us = (begin_s + started_s[message]) * 1e6
        length_us = (begin_s + times.arrived_s[message]) * 1e6 - start_us
        step, size = step_of[message], round(float(graph.amount[message]) * bytes_per_amount, 3)
        at = sender[message], receiver[message]
        spans.append(_span(at, f"step {step + 1}", start_us, length_us, 4, step=step, bytes=size))
    return times
