"""Predicts the time of a traffic pattern on a network, with the congestion model or a flow-level simulation.

Congestion model: steps run one after another, and each step takes as long as its slowest message. Flow-level
simulation: there are no barriers between steps; messages share links fairly and start as soon as all events that they
wait for have happened. The topology contains the bandwidths. The caller passes latencies and, if bandwidths are
relative, the rate of a link with bandwidth 1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import isqrt
from typing import Any, Literal, NamedTuple, TypeAlias, cast, get_args

import numpy as np
from numpy.typing import NDArray

from chorale.synth.errors import InvalidInput, name_among
from chorale.synth.executor.base import Progress
from chorale.synth.identity import parse_rational
from chorale.synth.kernels import native
from chorale.synth.schedule.schedule import Routes
from chorale.synth.schedule.traffic import Traffic, TrafficStep
from chorale.synth.topology.topology import Topology

LINK_LATENCY_US, HOP_US = "0.1", "0.3"
"""Default latencies of a link and of forwarding in µs, for topologies without latencies (Swing paper, section 5)."""
_UNIT_BITS_PER_S = {"GB/s": 8 * 10**9, "Gbit/s": 10**9}
Indices = NDArray[np.integer[Any]]
MAX_EVENTS = 2**25
"""Maximum number of messages plus gates in a graph. Each takes up to 200 bytes of memory."""
MAX_ROUTE_LINKS = 2**28
"""Maximum total number of links in the routes of all messages. Each link takes 12 bytes."""
_MOMENTS_AT_ONCE = 10_000
Times = NDArray[np.float64]
Fidelity: TypeAlias = Literal["step", "flow"]
FIDELITIES: tuple[str, ...] = get_args(Fidelity)
DEFAULT_PIPELINE_CHUNKS = 64
"""Default number of chunks into which the flow-level simulation divides pipelined traffic."""
MAX_CHUNKS = 2**16


@dataclass(frozen=True, slots=True)
class NetworkModel:
    """Latencies and link rates, from which the time of a message on any topology is computed exactly.

    If no other message is on the network, a message of s bytes over h links arrives after alpha + s / (bandwidth of the
    slowest link) + h * (link_latency + hop) + the topology's latencies.

    alpha_s:        seconds from the moment when a message may start until its first byte leaves
    link_latency_s: propagation delay of a link in seconds, in addition to the topology's latencies
    hop_s:          seconds that the node at the end of a link takes to forward a packet
    link_gbps:      rate in Gbit/s of a link with bandwidth 1; required if the topology's unit is "link", else ignored
    efficiency:     fraction of the topology's bandwidths that is available for data

    Source: Swing paper, section 5 (100 ns per link, 300 ns per hop).
    """

    alpha_s: Fraction = Fraction(0)
    link_latency_s: Fraction = Fraction(0)
    hop_s: Fraction = Fraction(0)
    link_gbps: Fraction | None = None
    efficiency: Fraction = Fraction(1)

    @staticmethod
    def of(
        alpha_us: float | str = 0,
        link_latency_us: float | str = 0,
        hop_us: float | str = 0,
        link_gbps: float | str | Fraction | None = None,
    ) -> NetworkModel:
        """Return the model with these latencies in microseconds and this link rate in Gbit/s, converted exactly."""
        seconds = []
        for given, name in ((alpha_us, "alpha"), (link_latency_us, "the link latency"), (hop_us, "the hop latency")):
            seconds.append(parse_rational(given, f"{name} (microseconds)") / 10**6)
            if seconds[-1] < 0:
                raise InvalidInput(f"{name} (microseconds) must not be negative", given, "use 0 or more")
        rate = None if link_gbps is None else parse_rational(link_gbps, "the link rate (Gbit/s)")
        if rate is not None and rate <= 0:
            raise InvalidInput("a link rate must be above zero", link_gbps, "give the Gbit/s of a link, such as 100")
        return NetworkModel(seconds[0], seconds[1], seconds[2], rate)

    @staticmethod
    def usual(topology: Topology, link_gbps: Fraction | None = None) -> NetworkModel:
        """Return the model to use if no latencies are given: the topology's latencies, or defaults if all are 0."""
        if any(topology.links.latencies_s):
            return NetworkModel(link_gbps=link_gbps)
        return NetworkModel.of(0, LINK_LATENCY_US, HOP_US, link_gbps)

    @property
    def per_hop_s(self) -> Fraction:
        """Seconds that each link on a route takes in addition to the topology's latency."""
        return self.link_latency_s + self.hop_s

    def unit_bytes_per_s(self, topology: Topology) -> Fraction:
        """Return the bytes per second of a link of bandwidth 1. Raises InvalidInput if the rate is unknown."""
        if topology.bandwidth_unit != "link":
            return self.efficiency * _UNIT_BITS_PER_S[topology.bandwidth_unit] / 8
        if self.link_gbps is None:
            rule = "{} has no link rates"
            raise InvalidInput(rule, topology.spec, "add the rate of a link, such as --link-gbps 400")
        return self.efficiency * self.link_gbps * 10**9 / 8


@dataclass(frozen=True, slots=True, eq=False)
class MessageGraph:
    """Messages over routes, and their dependencies. A message starts after one event, such as the opening of a gate.

    amount:  size of each message, in a unit that the caller converts to bytes
    route:   index of each message's route
    gates:   number of gates; a gate opens once all events that it depends on have happened
    cause, effect: effect[i] happens after cause[i]. A cause is an event: g if gate g opens, gates + m if message m has
                   left its sender, and gates + messages + m if message m has arrived. An effect is g for opening gate
                   g, or gates + m for starting message m. Each message must have exactly one cause.
    delay_s: additional seconds between each message's departure and arrival; None for no delay
    """

    routes: Routes
    route: Indices
    amount: Indices
    gates: int
    cause: Indices
    effect: Indices
    delay_s: NDArray[np.float64] | None = None

    @property
    def messages(self) -> int:
        return len(self.amount)


def stepped_flows(traffic: Traffic) -> MessageGraph:
    """Return the message graph of a stepped traffic pattern.

    A rank starts to send in step t + 1 once all messages to it in step t have arrived and all its messages of step t
    have left. Ranks wait for nothing else, so they may be in different steps at the same time. A rank waits for a
    complete step because traffic does not record which data a message contains. Implementations that start the messages
    of one step at a time wait in the same way. Uses one gate per rank and step. O(messages). Raises InvalidInput above
    `MAX_EVENTS`.
    """
    messages = _Messages.of(traffic, 1)
    ranks, steps, count = messages.actors, len(traffic.steps), len(messages.step)
    gates, number = ranks * (steps + 1), np.arange(count)
    at_sender = messages.step * ranks + messages.sender
    at_receiver = (messages.step + 1) * ranks + messages.receiver
    chain = np.arange(ranks * steps)
    cause = np.concatenate([at_sender, gates + number, gates + count + number, chain])
    effect = np.concatenate([gates + number, at_sender + ranks, at_receiver, chain + ranks])
    return MessageGraph(traffic.routes, messages.route, messages.amount, gates, cause, effect)


def pipelined_flows(traffic: Traffic, chunks: int) -> MessageGraph:
    """Return the message graph of a pipelined traffic pattern: trees along which `chunks` equal chunks are sent.

    A rank forwards chunk p at level t + 1 over a route once it has everything of chunk p that it receives at levels up
    to t, and once chunk p - 1 has left over this route. Amounts are multiplied by `chunks`, so that they are integers.
    Raises InvalidInput above `MAX_EVENTS`.
    """
    messages = _Messages.of(traffic, chunks)
    actors, levels, each = messages.actors, len(traffic.steps), len(messages.step)
    # A switch that adds or multicasts sends in the level in which it receives, so it waits for the next level's gate.
    starts = messages.step + (messages.sender >= traffic.topology.compute_count)
    chunk, number = np.repeat(np.arange(chunks), each), np.arange(chunks * each)
    level_gates = actors * (levels + 1)
    # In addition to gates per (chunk, level, rank), each message has a gate for its level and the previous chunk.
    gates = chunks * (level_gates + each)
    message_gate = chunks * level_gates + number
    at = chunk * level_gates + np.tile(starts * actors + messages.sender, chunks)
    onward = chunk * level_gates + np.tile((messages.step + 1) * actors + messages.receiver, chunks)
    chain = (np.arange(chunks)[:, None] * level_gates + np.arange(actors * levels)).ravel()
    later, total = number[each:], len(number)
    cause = np.concatenate([at, message_gate, gates + later - each, gates + total + number, chain])
    effect = np.concatenate([message_gate, gates + number, message_gate[each:], onward, chain + actors])
    route, amount = np.tile(messages.route, chunks), np.tile(messages.amount, chunks)
    return MessageGraph(traffic.routes, route, amount, gates, cause, effect)


class _Messages(NamedTuple):
    """The messages of all steps, ordered by step.

    actors: number of nodes that can send or receive: all nodes if switches reduce or multicast data, else the ranks
    """

    actors: int
    step: NDArray[np.int64]
    route: NDArray[np.int32]
    amount: NDArray[np.int64]
    sender: NDArray[np.int64]
    receiver: NDArray[np.int64]

    @staticmethod
    def of(traffic: Traffic, chunks: int) -> _Messages:
        """Return the messages in `traffic`. Raises InvalidInput if a graph for `chunks` chunks would be too large."""
        actors = traffic.topology.node_count if traffic.is_in_network else traffic.topology.compute_count
        count = np.array([len(step.route) for step in traffic.steps], dtype=np.int64)
        events = chunks * (actors * (len(count) + 1) + 2 * int(count.sum()))
        if events > MAX_EVENTS:
            rule = f"a flow-level simulation takes at most {MAX_EVENTS} messages and steps of ranks"
            raise InvalidInput(rule, events, "use the congestion model (--model step), or fewer chunks or ranks")
        route = np.concatenate([np.zeros(0, np.int32), *(step.route for step in traffic.steps)])
        amount = np.concatenate([np.zeros(0, np.int64), *(step.amount for step in traffic.steps)])
        ends = (traffic.routes.sources(traffic.topology.links), traffic.routes.destinations(traffic.topology.links))
        sender, receiver = (end[route].astype(np.int64) for end in ends)
        return _Messages(actors, np.repeat(np.arange(len(count)), count), route, amount, sender, receiver)


@dataclass(frozen=True, slots=True, eq=False)
class FlowTimes:
    """Times in seconds at which each gate opened, and at which the last byte of each message left and arrived.

    NaN means that the event never happened.
    """

    opened_s: Times
    departed_s: Times
    arrived_s: Times

    @property
    def end_s(self) -> float:
        """Seconds from the start to the last event."""
        times = np.concatenate([self.opened_s, self.arrived_s])
        return float(np.nanmax(times, initial=0.0))


def simulate_flows(
    graph: MessageGraph,
    topology: Topology,
    model: NetworkModel,
    bytes_per_amount: float,
    *,
    progress: Callable[[int, int], None] | None = None,
    max_route_links: int = MAX_ROUTE_LINKS,
) -> FlowTimes:
    """Return the times of all events in `graph`.

    A message's first byte leaves when the time alpha has passed since the message started. At any moment, max-min fair
    sharing of links determines the rate of each message. A message arrives when the latency of its route has passed
    since its last byte left. Nothing else takes time. Times are floating point with a relative error of about 1e-12;
    the same graph always gives identical results. `progress` is called with (messages arrived, all messages) after
    every 10,000 points in time at which rates change. Raises InvalidInput if routes have more than `max_route_links`
    links in total. O(points in time * links of the routes whose rates change).
    """
    routes, links = graph.routes, topology.links
    first = routes.offsets[graph.route]
    hops = (routes.offsets[graph.route + 1] - first).astype(np.int32)
    if (total := int(hops.sum())) > max_route_links:
        rule = f"the routes of all simulated messages can have at most {max_route_links} links in total"
        raise InvalidInput(rule, total, "use the congestion model (--model step) or a smaller topology")
    unit = model.unit_bytes_per_s(topology)
    capacities = np.array([float(bandwidth * unit) for bandwidth in links.bandwidths] or [1.0])
    latency_of_link = np.array([float(latency + model.per_hop_s) for latency in links.latencies_s] or [0.0])
    if len(links.latencies_s) < 2:
        of_route = np.diff(routes.offsets) * latency_of_link[0]
    else:
        of_route = np.zeros(len(routes))
        used = np.flatnonzero(np.diff(routes.offsets))  # reduceat does not support empty ranges
        if len(used):
            along = latency_of_link[links.latency_class[routes.link_ids]]
            of_route[used] = np.add.reduceat(along, routes.offsets[:-1][used])
    latency_s = np.asarray(of_route[graph.route], dtype=np.float64)
    latency_s = latency_s if graph.delay_s is None else latency_s + graph.delay_s
    # Each event's effects, in compressed rows, and the number of events that each gate waits for.
    order = np.argsort(graph.cause, kind="stable")
    events = np.arange(graph.gates + 2 * graph.messages + 1)
    offsets = np.searchsorted(graph.cause[order], events).astype(np.int64)
    effect = graph.effect.astype(np.int32)
    needs = np.bincount(effect[effect < graph.gates], minlength=graph.gates).astype(np.int32)
    simulation = native.FlowSimulation(
        np.asarray(graph.amount * bytes_per_amount, np.float64), latency_s, float(model.alpha_s), routes.link_ids,
        first, hops, capacities[links.bandwidth_class], offsets, effect[order], needs,
    )  # fmt: skip
    while simulation.advance(_MOMENTS_AT_ONCE):
        if progress is not None:
            progress(simulation.arrived, graph.messages)
    return FlowTimes(simulation.opened_at_s, simulation.arrived_at_s - latency_s, simulation.arrived_at_s)


class LinkLoad(NamedTuple):
    """The largest link load in a step, over all routes with the same number of hops and the same latency.

    time_per_byte: load as a fraction of the vector, divided by the link's bandwidth in the topology's unit
    hops:          number of links of these routes
    latency_s:     sum of the link latencies along these routes, in seconds
    """

    time_per_byte: Fraction
    hops: int
    latency_s: Fraction


LinkLoads = frozenset[LinkLoad]


@dataclass(frozen=True, slots=True)
class Congestion:
    """Link loads of a traffic pattern's steps, from which the time for any latencies, link rates and size is computed.

    steps:  maps each set of loads to the number of steps that have it. A set omits a load if another load is at least
            as large in every field.
    stream: time per byte of all steps together if the traffic is pipelined; None if steps run one after another
    """

    topology: Topology
    steps: Mapping[LinkLoads, int]
    stream: Fraction | None

    @property
    def time_per_byte(self) -> Fraction:
        """Time per byte if all latencies are 0. The unit is 1 / (bandwidth unit of the topology)."""
        if self.stream is not None:
            return self.stream
        largest = (
            (max((load.time_per_byte for load in loads), default=Fraction(0)), n) for loads, n in self.steps.items()
        )
        return sum((time * count for time, count in largest), Fraction(0))

    def seconds(self, model: NetworkModel, size_bytes: int, pipeline_chunks: int | None = None) -> Fraction:
        """Return the predicted time in seconds for a vector of `size_bytes`.

        Stepped traffic: a step takes alpha + the maximum of (load / bandwidth + latency) over its messages, where the
        load is that of the busiest link on the message's route, and the latency is the sum over the route. The time is
        exact if all messages of a step start together and have equally loaded links.
        Pipelined traffic: P chunks pass h levels in P + h - 1 rounds, in which all links are busy at the same time. P
        is `pipeline_chunks`, or the number that gives the shortest time.
        """
        scale = size_bytes / model.unit_bytes_per_s(self.topology)

        def seconds_of_steps(scale: Fraction) -> Fraction:
            total = Fraction(0)
            for loads, count in self.steps.items():
                longest = [load.time_per_byte * scale + load.hops * model.per_hop_s + load.latency_s for load in loads]
                total += count * (model.alpha_s + max(longest)) if loads else 0
            return total

        if self.stream is None:
            return seconds_of_steps(scale)
        transfer_s = self.stream * scale
        first_byte_s = seconds_of_steps(Fraction(0))
        # Two times are added to `first_byte_s`: the time to fill h - 1 levels, and alpha for every further chunk.
        filling_s = max(0, sum(self.steps.values()) - 1) * transfer_s
        if pipeline_chunks is None and model.alpha_s == 0:
            return first_byte_s + transfer_s
        root = isqrt(int(filling_s / model.alpha_s)) if pipeline_chunks is None else 0
        candidates = (max(1, root), root + 1) if pipeline_chunks is None else (pipeline_chunks,)
        return first_byte_s + transfer_s + min(filling_s / n + (n - 1) * model.alpha_s for n in candidates)


def congestion_of(traffic: Traffic) -> Congestion:
    """Return the exact costs of the traffic's steps. O(links on the routes of all distinct steps).

    If switches reduce or multicast data, a path from rank to rank consists of several routes. Its latency is computed
    from the longest route to each level of switches, and so may be overestimated if paths differ.
    """
    links, routes = traffic.topology.links, traffic.routes
    if len(routes):
        along, parts = routes.latencies(links)
    else:
        along, parts = np.zeros(0, dtype=object), 1
    pairs = list(zip(np.diff(routes.offsets).tolist(), along.tolist(), strict=True))
    kinds = sorted(set(pairs))
    distances = [(hops, Fraction(latency, parts)) for hops, latency in kinds]
    kind_of = {pair: index for index, pair in enumerate(kinds)}
    of_route = np.array([kind_of[pair] for pair in pairs], dtype=np.int64)
    by_step: dict[int, LinkLoads] = {}  # the same step object may occur many times
    counts: Counter[LinkLoads] = Counter()
    for step in traffic.steps:
        if len(step.route):
            if id(step) not in by_step:
                by_step[id(step)] = _loads(traffic, step, of_route, distances)
            counts[by_step[id(step)]] += 1
    slowest = None
    if traffic.kind == "pipelined":
        loads = sum((traffic.link_amounts(step) for step in traffic.steps), np.zeros(len(links), dtype=np.int64))
        slowest = links.longest_time(loads) / traffic.denominator
    return Congestion(traffic.topology, counts, slowest)


def _loads(
    traffic: Traffic, step: TrafficStep, of_route: NDArray[np.int64], distances: Sequence[tuple[int, Fraction]]
) -> LinkLoads:
    """Return the link loads of a step, without loads that can never determine its time.

    of_route:  for each route, an index into `distances`
    distances: the different (number of hops, latency in seconds) of routes
    """
    links, routes = traffic.topology.links, traffic.routes
    worst = np.zeros((len(links.bandwidths), len(distances)), dtype=np.int64)
    lengths, link_ids = routes.hops_of(step.route)
    places = links.bandwidth_class[link_ids], np.repeat(of_route[step.route], lengths)
    np.maximum.at(worst, places, traffic.link_amounts(step)[link_ids])
    largest = [
        LinkLoad(Fraction(int(worst[index, kind]), traffic.denominator) / links.bandwidths[index], *distances[kind])
        for index, kind in np.argwhere(worst).tolist()
    ]
    kept: list[LinkLoad] = []
    for load in sorted(largest, reverse=True):
        if not any(other.hops >= load.hops and other.latency_s >= load.latency_s for other in kept):
            kept.append(load)
    if traffic.is_in_network:  # a load of zero represents the longest path through switches that add or multicast
        ranks, src, dst = traffic.topology.compute_count, traffic.src(step), traffic.dst(step)
        hops, latency_s = 0, Fraction(0)
        reached = {int(node) for node in src if node < ranks}
        waiting = list(zip(src.tolist(), dst.tolist(), of_route[step.route].tolist(), strict=True))
        while now := [row for row in waiting if row[0] in reached]:
            hops += max(distances[kind][0] for _, _, kind in now)
            latency_s += max(distances[kind][1] for _, _, kind in now)
            waiting = [row for row in waiting if row[0] not in reached]
            reached = {target for _, target, _ in now if target >= ranks}
        kept.append(LinkLoad(Fraction(0), hops, latency_s))
    return frozenset(kept)


def as_fidelity(text: str) -> Fidelity:
    """Return `text` as the name of a simulation model. Raises InvalidInput for unknown names."""
    return cast(Fidelity, name_among("model", text, FIDELITIES))


def simulate(
    traffic: Traffic,
    network: NetworkModel,
    sizes_bytes: Sequence[int],
    fidelity: Fidelity = "step",
    *,
    pipeline_chunks: int | None = None,
    progress: Progress | None = None,
) -> list[float]:
    """Return the predicted time in seconds for each vector size in `sizes_bytes`. The result is deterministic.

    fidelity: "step" for the congestion model, which is exact and has barriers between steps, or "flow" for the
              flow-level simulation, in which ranks only wait for their data, and messages share links fairly
    pipeline_chunks: number of chunks per stream of a pipelined pattern; None for the best number ("step") or
              `DEFAULT_PIPELINE_CHUNKS` ("flow"); ignored for stepped patterns
    progress: called with (messages arrived, messages to simulate for all sizes); only used by "flow"

    >>> from chorale.synth import SerialExecutor, parse_collective, parse_topology, synthesize, traffic_of
    >>> ring = parse_topology("ring:4")
    >>> verified = synthesize("bfb", ring, parse_collective("allgather"), None, SerialExecutor())
    >>> network = NetworkModel.of(alpha_us="10", link_gbps="100")
    >>> [f"{seconds * 1e6:.1f} us" for seconds in simulate(traffic_of(verified.schedule), network, [1024, 2**20])]
    ['20.0 us', '51.5 us']
    """
    if pipeline_chunks is not None and not 1 <= pipeline_chunks <= MAX_CHUNKS:
        rule = f"pipelined traffic must be divided into 1 to {MAX_CHUNKS} chunks"
        raise InvalidInput(rule, pipeline_chunks, "choose a number in this range")
    streams = list(traffic.streams())
    if fidelity == "step":
        congestions = [congestion_of(stream) for stream in streams]
        return [
            float(sum(part.seconds(network, size, pipeline_chunks) for part in congestions)) for size in sizes_bytes
        ]
    chunks = pipeline_chunks or DEFAULT_PIPELINE_CHUNKS
    seconds = [0.0] * len(sizes_bytes)
    for number, stream in enumerate(streams):
        is_pipelined = stream.kind == "pipelined"
        graph = pipelined_flows(stream, chunks) if is_pipelined else stepped_flows(stream)
        amounts = stream.denominator * (chunks if is_pipelined else 1)
        for index, size_bytes in enumerate(sizes_bytes):
            done_before = (number * len(sizes_bytes) + index) * graph.messages

            def report(done: int, messages: int, before: int = done_before) -> None:
                if progress is not None:
                    progress(before + done, len(streams) * len(sizes_bytes) * messages)

            times = simulate_flows(graph, stream.topology, network, size_bytes / amounts, progress=report)
            if stream.is_in_network and bool(np.isnan(times.arrived_s).any()):
                rule = "the flow model cannot simulate trees that cross switches in opposite directions in one step: {}"
                raise InvalidInput(rule, stream.topology.spec, "use the congestion model (--model step)")
            seconds[index] += times.end_s
    return seconds
