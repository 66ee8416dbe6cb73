"""The event loop of the flow-level simulation, as a kernel that can be run in parts."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.kernels.compiled import compiled, inlined
from chorale.synth.kernels.heap import EventHeap, next_event, schedule_event
from chorale.synth.simulation.max_min_fairness import (
    RELATIVE_TOLERANCE,
    FairShares,
    MessagePaths,
    Scratch,
    add_message,
    mark_links,
    remove_message,
    update_rates,
)

STARTING, SENDING, FLYING, ARRIVED = range(1, 5)


class FlowMessages(NamedTuple):
    """amount[m]: what message m sends, in capacity times seconds; latency_s[m]: of its route; alpha_s[0]: of all."""

    amount: NDArray[np.float64]
    latency_s: NDArray[np.float64]
    alpha_s: NDArray[np.float64]


class FlowDependencies(NamedTuple):
    """Which gates and messages wait for which events; see `chorale.synth.simulation.flow_simulation.MessageGraph`.

    Events are numbered: gate g opens: g; message m has left: gates + m; it has arrived: gates + messages + m.
    `targets[offsets[e] : offsets[e + 1]]` wait for event e: gates, or, above the number of gates, messages that start.
    """

    offsets: NDArray[np.int64]
    targets: NDArray[np.int32]
    needs: NDArray[np.int32]


class Timeline(NamedTuple):
    """How far the run has come; arrays of one are counters that a kernel can change.

    `events[: pending[0]]` are those of the present moment whose consequences are not yet processed.
    """

    state: NDArray[np.int8]
    opened_at_s: NDArray[np.float64]
    arrived_at_s: NDArray[np.float64]
    now_s: NDArray[np.float64]
    arrived: NDArray[np.int64]
    events: NDArray[np.int32]
    pending: NDArray[np.int64]
    moment: NDArray[np.int32]


class FlowRun(NamedTuple):
    """All of a simulation, for kernels."""

    messages: FlowMessages
    paths: MessagePaths
    dependencies: FlowDependencies
    shares: FairShares
    scratch: Scratch
    heap: EventHeap
    timeline: Timeline


@compiled
def advance(run: FlowRun, moments: int) -> bool:
    """Run `moments` moments at which something happens; return whether events remain.

    Simultaneous events (up to rounding) are one moment: rates are computed once, for all of them.
    """
    paths, heap, timeline = run.paths, run.heap, run.timeline
    for _ in range(moments):
        touched = 0
        for index in range(_next_moment(heap, timeline)):
            message = timeline.moment[index]
            if timeline.state[message] == SENDING:
                remove_message(paths, run.shares, message)
                touched = mark_links(paths, run.scratch, touched, message)
                _depart(run, message)
            elif timeline.state[message] == FLYING:
                _arrive(run, message)
            else:
                touched = _start_message(run, message, touched)
        touched = _process_consequences(run, touched)
        if touched > 0:
            update_rates(paths, run.shares, run.scratch, touched, heap, timeline.now_s[0])
        if heap.size[0] == 0:
            return False
    return True


@inlined
def _process_consequences(run: FlowRun, touched: int) -> int:
    """Process all consequences that follow immediately; return how many links have changed."""
    dependencies, timeline = run.dependencies, run.timeline
    while timeline.pending[0] > 0:
        timeline.pending[0] -= 1
        event = timeline.events[timeline.pending[0]]
        for position in range(dependencies.offsets[event], dependencies.offsets[event + 1]):
            target = dependencies.targets[position]
            message = target - len(dependencies.needs)
            if message < 0:
                _open_gate_if_ready(dependencies, timeline, target)
            elif run.messages.alpha_s[0] > 0:
                timeline.state[message] = STARTING
                schedule_event(run.heap, message, timeline.now_s[0] + run.messages.alpha_s[0])
            else:
                touched = _start_message(run, message, touched)
    return touched


@inlined
def _next_moment(heap: EventHeap, timeline: Timeline) -> int:
    """Take all events that come next off the heap; return how many there are."""
    count = 0
    if heap.size[0] > 0:
        limit = heap.time[heap.members[0]] * (1 + RELATIVE_TOLERANCE)
        while heap.size[0] > 0 and heap.time[heap.members[0]] <= limit:
            timeline.moment[count] = next_event(heap)
            count += 1
        # The latest of them: nothing may happen before its time.
        timeline.now_s[0] = max(timeline.now_s[0], heap.time[timeline.moment[count - 1]])
    return count


@inlined
def _record_event(timeline: Timeline, event: int) -> None:
    timeline.events[timeline.pending[0]] = event
    timeline.pending[0] += 1


@inlined
def _open_gate_if_ready(dependencies: FlowDependencies, timeline: Timeline, gate: int) -> None:
    dependencies.needs[gate] -= 1
    if dependencies.needs[gate] == 0:
        timeline.opened_at_s[gate] = timeline.now_s[0]
        _record_event(timeline, gate)


@inlined
def _start_message(run: FlowRun, message: int, touched: int) -> int:
    """Let the first byte of `message` leave; return how many links have changed."""
    messages, timeline = run.messages, run.timeline
    if messages.amount[message] == 0 or run.paths.hops[message] == 0:
        _depart(run, message)
        return touched
    timeline.state[message] = SENDING
    add_message(run.paths, run.shares, message, messages.amount[message], timeline.now_s[0])
    return mark_links(run.paths, run.scratch, touched, message)


@inlined
def _depart(run: FlowRun, message: int) -> None:
    """The last byte of `message` leaves."""
    messages, timeline = run.messages, run.timeline
    _record_event(timeline, len(run.dependencies.needs) + message)
    timeline.state[message] = FLYING
    if messages.latency_s[message] > 0:
        schedule_event(run.heap, message, timeline.now_s[0] + messages.latency_s[message])
    else:
        _arrive(run, message)


@inlined
def _arrive(run: FlowRun, message: int) -> None:
    """The last byte of `message` arrives."""
    timeline = run.timeline
    _record_event(timeline, len(run.dependencies.needs) + len(run.messages.amount) + message)
    timeline.state[message] = ARRIVED
    timeline.arrived_at_s[message] = timeline.now_s[0]
    timeline.arrived[0] += 1
