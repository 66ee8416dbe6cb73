"""Traces of simulated schedules in the format of Perfetto and chrome://tracing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chorale.synth.errors import InvalidInput
from chorale.synth.schedule.traffic import Traffic
from chorale.synth.simulation.flow_simulation import (
    FlowTimes,
    MessageGraph,
    pipelined_flows,
    simulate_flows,
    stepped_flows,
)
from chorale.synth.simulation.network_model import NetworkModel

MAX_EVENTS = 200_000
TRACE_CHUNKS = 16
"""Into how many chunks trees cut what they stream, unless told otherwise."""

Event = dict[str, Any]


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
    _require_few(traffic, pipeline_chunks)
    events: list[Event] = []
    begin_s = 0.0
    for stream in traffic.streams():
        simulated = _simulated(stream, network, size_bytes, pipeline_chunks, begin_s)
        events += _events(stream, simulated, size_bytes / _amounts(stream, pipeline_chunks))
        begin_s += simulated.times.end_s
    other = {"spec": traffic.topology.spec, "collective": traffic.collective.name.value, "size_bytes": size_bytes}
    document = {
        "displayTimeUnit": "ns",
        "traceEvents": [*_names(traffic, events), *events],
        "otherData": {**other, "time_us": begin_s * 1e6},
    }
    return json.dumps(document, separators=(",", ":"))


def _require_few(traffic: Traffic, chunks: int) -> None:
    messages = sum(len(step.route) for step in traffic.steps) * (chunks if traffic.kind == "pipelined" else 1)
    if messages > MAX_EVENTS:
        rule = f"a trace has at most {MAX_EVENTS} messages"
        raise InvalidInput(rule, messages, "take fewer ranks, or fewer --pipeline-chunks")


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


def _events(traffic: Traffic, stream: _Stream, bytes_per_amount: float) -> Iterator[Event]:
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


def _names(traffic: Traffic, events: list[Event]) -> Iterator[Event]:
    ids, ranks = traffic.topology.node_ids, traffic.topology.compute_count
    for pid in sorted({event["pid"] for event in events}):
        kind = "rank" if pid < ranks else "switch"
        yield {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": f"{kind} {ids[pid]}"}}
        yield {"ph": "M", "pid": pid, "name": "process_sort_index", "args": {"sort_index": pid}}
    for pid, tid in sorted({(event["pid"], event["tid"]) for event in events}):
        yield {"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": f"to {ids[tid]}"}}
