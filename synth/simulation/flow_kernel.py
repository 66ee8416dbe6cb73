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
    """What waits for what; see `chorale.synth.simulation.flow_simulation.FlowGraph`.

    Happenings are numbered: gate g opens: g; message m has left: gates + m; it has arrived: gates + messages + m.
    Happening h helps `targets[offsets[h] : offsets[h + 1]]`: gates, or above their number messages, which start.
    """

    offsets: NDArray[np.int64]
    targets: NDArray[np.int32]
    needs: NDArray[np.int32]


class Timeline(NamedTuple):
    """How far the run has come; arrays of one are counters that a kernel can change.

    `happenings[: pending[0]]` are those of the present moment whose consequences are still to come.
    """

    state: NDArray[np.int8]
    opened_at_s: NDArray[np.float64]
    arrived_at_s: NDArray[np.float64]
    now_s: NDArray[np.float64]
    arrived: NDArray[np.int64]
    happenings: NDArray[np.int32]
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
    """Run `moments` moments at which something happens; return whether anything is left to come.

    Simultaneous events (up to rounding) are one moment: rates are found once, for all of them.
    """
    paths, heap, course = run.paths, run.heap, run.timeline
    for _ in range(moments):
        touched = 0
        for index in range(_next_moment(heap, course)):
            message = course.moment[index]
            if course.state[message] == SENDING:
                remove_message(paths, run.shares, message)
                touched = mark_links(paths, run.scratch, touched, message)
                _depart(run, message)
            elif course.state[message] == FLYING:
                _arrive(run, message)
            else:
                touched = _begin(run, message, touched)
        touched = _follow(run, touched)
        if touched > 0:
            update_rates(paths, run.shares, run.scratch, touched, heap, course.now_s[0])
        if heap.size[0] == 0:
            return False
    return True


@inlined
def _follow(run: FlowRun, touched: int) -> int:
    """Let everything happen that follows at once; return how many links have changed."""
    conditions, course = run.dependencies, run.timeline
    while course.pending[0] > 0:
        course.pending[0] -= 1
        happening = course.happenings[course.pending[0]]
        for position in range(conditions.offsets[happening], conditions.offsets[happening + 1]):
            target = conditions.targets[position]
            message = target - len(conditions.needs)
            if message < 0:
                _help(conditions, course, target)
            elif run.messages.alpha_s[0] > 0:
                course.state[message] = STARTING
                schedule_event(run.heap, message, course.now_s[0] + run.messages.alpha_s[0])
            else:
                touched = _begin(run, message, touched)
    return touched


@inlined
def _next_moment(heap: EventHeap, course: Timeline) -> int:
    """Take all events that come next off the heap; return how many there are."""
    count = 0
    if heap.size[0] > 0:
        limit = heap.time[heap.members[0]] * (1 + RELATIVE_TOLERANCE)
        while heap.size[0] > 0 and heap.time[heap.members[0]] <= limit:
            course.moment[count] = next_event(heap)
            count += 1
        # The latest of them: nothing may happen before its time.
        course.now_s[0] = max(course.now_s[0], heap.time[course.moment[count - 1]])
    return count


@inlined
def _happen(course: Timeline, happening: int) -> None:
    course.happenings[course.pending[0]] = happening
    course.pending[0] += 1


@inlined
def _help(conditions: FlowDependencies, course: Timeline, gate: int) -> None:
    conditions.needs[gate] -= 1
    if conditions.needs[gate] == 0:
        course.opened_at_s[gate] = course.now_s[0]
        _happen(course, gate)


@inlined
def _begin(run: FlowRun, message: int, touched: int) -> int:
    """Let the first byte of `message` leave; return how many links have changed."""
    messages, course = run.messages, run.timeline
    if messages.amount[message] == 0 or run.paths.hops[message] == 0:
        _depart(run, message)
        return touched
    course.state[message] = SENDING
    add_message(run.paths, run.shares, message, messages.amount[message], course.now_s[0])
    return mark_links(run.paths, run.scratch, touched, message)


@inlined
def _depart(run: FlowRun, message: int) -> None:
    """The last byte of `message` leaves."""
    messages, course = run.messages, run.timeline
    _happen(course, len(run.dependencies.needs) + message)
    course.state[message] = FLYING
    if messages.latency_s[message] > 0:
        schedule_event(run.heap, message, course.now_s[0] + messages.latency_s[message])
    else:
        _arrive(run, message)


@inlined
def _arrive(run: FlowRun, message: int) -> None:
    """The last byte of `message` has come."""
    course = run.timeline
    _happen(course, len(run.dependencies.needs) + len(run.messages.amount) + message)
    course.state[message] = ARRIVED
    course.arrived_at_s[message] = course.now_s[0]
    course.arrived[0] += 1
