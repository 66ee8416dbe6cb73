"""From a traffic pattern to messages and what they wait for, without barriers between steps."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from chorale.synth.errors import InvalidInput
from chorale.synth.schedule.traffic import Traffic
from chorale.synth.simulation.flow_graph import MessageGraph

MAX_EVENTS = 2**25
"""Messages and gates of a graph; each takes up to about two hundred bytes."""


def stepped_flows(traffic: Traffic) -> MessageGraph:
    """Return the flows of a stepped pattern: a rank starts its sends of step t + 1 once all that it receives in
    step t is there and all that it sends in step t has left.

    Ranks wait for nobody else, so they may be steps apart. Traffic does not say which part of the vector a message
    carries, so a rank waits for all of a step, as implementations that post a step at a time do. One gate for
    each rank and step, O(messages) besides. Raises InvalidInput for more than `MOST_EVENTS`.
    """
    _require_size(traffic, 1)
    ranks, count = traffic.topology.compute_count, _message_counts(traffic)
    step = np.repeat(np.arange(len(count)), count)
    sender, receiver = _ends(traffic)
    gates, messages = ranks * (len(count) + 1), int(count.sum())
    number = np.arange(messages)
    own, theirs = step * ranks + sender, (step + 1) * ranks + receiver
    chain = np.arange(ranks * len(count))
    cause = np.concatenate([own, gates + number, gates + messages + number, chain])
    effect = np.concatenate([gates + number, own + ranks, theirs, chain + ranks])
    return MessageGraph(traffic.routes, *_columns(traffic), gates, cause, effect)


def pipelined_flows(traffic: Traffic, chunks: int) -> MessageGraph:
    """Return the flows of trees that stream `chunks` equal chunks one after the other.

    A rank passes chunk p on at level t + 1 once all that it receives of chunk p up to level t is there and its own
    chunk p - 1 has left the same way. Amounts count parts of size 1 / `chunks`. Raises
    InvalidInput for more than `MOST_EVENTS`.
    """
    _require_size(traffic, chunks)
    ranks, count = traffic.topology.compute_count, _message_counts(traffic)
    levels, messages = len(count), int(count.sum())
    level = np.repeat(np.arange(levels), count)
    sender, receiver = _ends(traffic)
    chunk = np.repeat(np.arange(chunks), messages)
    number = np.arange(chunks * messages)
    level_gates = ranks * (levels + 1)
    # Beside the gate of (chunk, level, rank), each message has one of its own: for its level and its forerunner.
    gates = chunks * (level_gates + messages)
    own_gate = chunks * level_gates + number
    at = chunk * level_gates + np.tile(level * ranks + sender, chunks)
    onward = chunk * level_gates + np.tile((level + 1) * ranks + receiver, chunks)
    chain = (np.arange(chunks)[:, None] * level_gates + np.arange(ranks * levels)).ravel()
    later = number[messages:]
    total = len(number)
    cause = np.concatenate([at, own_gate, gates + later - messages, gates + total + number, chain])
    effect = np.concatenate([own_gate, gates + number, own_gate[messages:], onward, chain + ranks])
    route, amount = _columns(traffic)
    return MessageGraph(traffic.routes, np.tile(route, chunks), np.tile(amount, chunks), gates, cause, effect)


def _require_size(traffic: Traffic, chunks: int) -> None:
    ranks = traffic.topology.compute_count
    events = chunks * (ranks * (len(traffic.steps) + 1) + 2 * int(_message_counts(traffic).sum()))
    if events > MAX_EVENTS:
        rule = f"a flow-level simulation takes at most {MAX_EVENTS} messages and steps of ranks"
        raise InvalidInput(rule, events, "use the congestion model (--model step), or fewer chunks or ranks")


def _message_counts(traffic: Traffic) -> NDArray[np.int64]:
    return np.array([len(step.route) for step in traffic.steps], dtype=np.int64)


def _ends(traffic: Traffic) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    links, (route, _) = traffic.topology.links, _columns(traffic)
    sources, destinations = traffic.routes.sources(links), traffic.routes.destinations(links)
    return sources[route].astype(np.int64), destinations[route].astype(np.int64)


def _columns(traffic: Traffic) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    route = np.concatenate([np.zeros(0, np.int32), *(step.route for step in traffic.steps)])
    amount = np.concatenate([np.zeros(0, np.int64), *(step.amount for step in traffic.steps)])
    return route, amount
