"""Both models: exact costs and closed forms, an exact reference for flows, agreement where both apply, refusals."""

from collections import Counter
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, strategies as st

from chorale.experiments.framework.experiment import synthesized
from chorale.synth.collective import ALLGATHER, ALLREDUCE, REDUCE_SCATTER, Collective
from chorale.synth.errors import InvalidInput
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.methods.bfb.bfb import symmetric_bfb
from chorale.synth.schedule.schedule import Routes, Schedule
from chorale.synth.schedule.traffic import Traffic, TrafficStep, traffic_of
from chorale.synth.simulation.simulate import (
    MessageGraph,
    NetworkModel,
    as_fidelity,
    congestion_of,
    simulate,
    simulate_flows,
)
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology
from tests.links import network
from tests.reference.fair_flows import Flow, arrival_times
from tests.strategies import MIXED, strongly_connected_topologies

LATENCIES = (Fraction(0), Fraction(1, 3), Fraction(2, 7))
BYTE_A_SECOND = NetworkModel.of(link_gbps="8e-9")


def path_network(*bandwidths: int) -> Topology:
    """Nodes in a row: link i goes from node i to node i + 1."""
    rows = [(node, node + 1, bandwidth) for node, bandwidth in enumerate(bandwidths)]
    return replace(network(len(rows) + 1, 0, rows), bandwidth_unit="link")


def step_of(*messages: tuple[int, int]) -> TrafficStep:
    route, amount = zip(*messages, strict=True)
    return TrafficStep(np.array(route, dtype=np.int32), np.array(amount, dtype=np.int64))


@given(
    st.sampled_from(["bfb", "ring", "biring"]),
    st.sampled_from([ALLGATHER, REDUCE_SCATTER, ALLREDUCE]),
    strongly_connected_topologies(2, 6, bandwidths=MIXED, latencies_s=LATENCIES),
)
def test_seconds_are_the_cost_that_verification_finds(method: str, collective: Collective, topology: Topology):
    verified = synthesized(method, topology, collective, chunks=2)
    congestion = congestion_of(traffic_of(verified.schedule))
    assert congestion.seconds(BYTE_A_SECOND, 0) == verified.cost.latency_s
    # Far above all latencies, every further byte costs what the schedule says.
    one, two = (congestion.seconds(BYTE_A_SECOND, size_bytes) for size_bytes in (10**9, 2 * 10**9))
    assert two - one == verified.cost.time_per_byte * 10**9


def by_definition(schedule: Schedule, size_bytes: int) -> Fraction:
    topology = schedule.topology
    chunk = Fraction(size_bytes, topology.compute_count * schedule.chunks_per_shard)
    rows = list(zip(*(column.tolist() for column in schedule.transfers.columns), strict=True))
    carried: Counter[tuple[int, int]] = Counter()
    for step, route, _, lo, hi, _ in rows:
        for link in schedule.routes.path(route):
            carried[step, link] += hi - lo
    longest: dict[int, Fraction] = {}
    for step, route, *_ in rows:
        links = [topology.links[int(link)] for link in schedule.routes.path(route)]
        loads = [carried[step, link] * chunk for link in schedule.routes.path(route)]
        slowest = max(load / (link.bandwidth * 10**9) for load, link in zip(loads, links, strict=True))
        longest[step] = max(longest.get(step, Fraction(0)), sum(link.latency_s for link in links) + slowest)
    return sum(longest.values(), Fraction(0))


@given(
    strongly_connected_topologies(2, 6, 8, True, MIXED, [Fraction(0), Fraction(1, 10**6), Fraction(1, 30_000)]),
    st.sampled_from(["bfb", "ring", "biring"]),
    st.integers(1, 10**7),
)
def test_steps_take_as_long_as_their_slowest_transfer(topology, method, size_bytes):
    in_bytes = replace(topology, bandwidth_unit="GB/s")
    schedule = synthesized(method, in_bytes, ALLREDUCE, chunks=2).schedule
    seconds = congestion_of(traffic_of(schedule)).seconds(NetworkModel(), size_bytes)
    assert seconds == by_definition(schedule, size_bytes)


def test_a_step_ends_with_its_slowest_message_not_with_the_sum_of_the_worst():
    # The busy link is one hop long; the long way carries little: neither waits for the other.
    routes = Routes.of_paths([[0], [1, 2]])
    traffic = Traffic(path_network(1, 1, 1), ALLGATHER, "stepped", (step_of((0, 6), (1, 1)),), 10, routes)
    model = NetworkModel.of(hop_us=2e6, link_gbps="8e-9")
    assert congestion_of(traffic).seconds(model, 10) == 2 + 6
    assert congestion_of(traffic).seconds(model, 1) == 4 + Fraction(1, 10)


def test_empty_steps_take_no_time():
    empty = TrafficStep(np.zeros(0, np.int32), np.zeros(0, np.int64))
    steps = empty, step_of((0, 1)), empty
    traffic = Traffic(path_network(1, 1), ALLGATHER, "stepped", steps, 3, Routes.direct(2))
    assert congestion_of(traffic).seconds(NetworkModel.of(1, link_gbps="8e-9"), 3) == 1 + Fraction(1, 10**6)


def streaming(levels: int) -> Traffic:
    """A chain along which 4 bytes stream at a byte a second."""
    steps = tuple(step_of((level, 1)) for level in range(levels))
    return Traffic(path_network(*[1] * levels), ALLGATHER, "pipelined", steps, 1, Routes.direct(levels))


@pytest.mark.parametrize("chunks", [1, 2, 4])
def test_chunks_stream_through_the_levels(chunks: int):
    model = NetworkModel.of(alpha_us=1e6, hop_us=2e6, link_gbps="8e-9")
    # P + h - 1 rounds of 4 / P seconds, alpha for each of the P chunks and each level but one, latency of h hops
    expected = (chunks + 3 - 1) * (Fraction(4, chunks) + 1) + 3 * 2
    assert congestion_of(streaming(3)).seconds(model, 4, chunks) == expected


@given(st.integers(1, 6), st.integers(1, 1000), st.integers(0, 20))
def test_the_best_number_of_chunks_is_found(levels: int, size_bytes: int, alpha_s: int):
    congestion = congestion_of(streaming(levels))
    model = NetworkModel.of(alpha_us=alpha_s * 10**6, link_gbps="8e-9")
    best = congestion.seconds(model, size_bytes)
    tried = [congestion.seconds(model, size_bytes, chunks) for chunks in range(1, 80)]
    assert best <= min(tried)
    assert alpha_s == 0 or best in tried


def graph_of(flows: list[Flow]) -> MessageGraph:
    """One gate per flow, which starts it."""
    count = len(flows)
    cause, effect = list(range(count)), list(range(count, 2 * count))
    for index, flow in enumerate(flows):
        cause += [count + other for other in flow.after_left] + [2 * count + other for other in flow.after_arrival]
        effect += [index] * len(flow.after_left + flow.after_arrival)
    amounts = np.array([int(flow.amount) for flow in flows])
    routes = Routes.of_paths(flow.links for flow in flows)
    return MessageGraph(routes, np.arange(count), amounts, count, np.array(cause), np.array(effect))


def arrivals(flows: list[Flow], topology: Topology, model: NetworkModel = BYTE_A_SECOND) -> list[float]:
    return simulate_flows(graph_of(flows), topology, model, 1.0).arrived_s.tolist()


def test_one_message_takes_its_slowest_link_and_all_latencies():
    model = NetworkModel.of(alpha_us=2e6, link_latency_us=1e6, hop_us=3e6, link_gbps="8e-9")
    # 2 s alpha, 12 bytes at 2 bytes a second, two hops of 1 s + 3 s
    assert arrivals([Flow(Fraction(12), (0, 1))], path_network(4, 2), model) == [2 + 6 + 8]


def test_what_waits_for_itself_never_happens():
    flows = [Flow(Fraction(1), (0,)), Flow(Fraction(1), (0,), after_arrival=(1,))]
    times = simulate_flows(graph_of(flows), path_network(1), BYTE_A_SECOND, 1.0)
    assert np.isnan(times.arrived_s).tolist() == [False, True]
    assert np.isnan(times.opened_s).tolist() == [False, True]
    assert times.end_s == 1


def test_too_large_runs_are_refused():
    graph = graph_of([Flow(Fraction(1), (0, 1))] * 2)
    with pytest.raises(InvalidInput, match="at most 3 links in total"):
        simulate_flows(graph, path_network(1, 1), BYTE_A_SECOND, 1.0, max_route_links=3)


@st.composite
def problems(draw: st.DrawFn) -> tuple[Topology, list[Flow]]:
    """Random flows along random walks, waiting for earlier ones, on random networks."""
    topology = draw(strongly_connected_topologies(2, 6, bandwidths=MIXED))
    outgoing = [np.flatnonzero(topology.links.src == node).tolist() for node in range(topology.node_count)]
    flows: list[Flow] = []
    for index in range(draw(st.integers(1, 9))):
        node = draw(st.integers(0, topology.node_count - 1))
        walk = []
        for _ in range(draw(st.integers(1, 4))):
            walk.append(draw(st.sampled_from(outgoing[node])))
            node = int(topology.links.dst[walk[-1]])
        earlier = st.lists(st.sampled_from(range(index)), max_size=2, unique=True) if index else st.just([])
        waits = tuple(draw(earlier)), tuple(draw(earlier))
        flows.append(Flow(Fraction(draw(st.integers(0, 12))), tuple(walk), Fraction(len(walk), 4), *waits))
    return topology, flows


MODEL = NetworkModel.of(alpha_us=5e5, hop_us=25e4, link_gbps="8e-9")


@given(problems())
def test_times_are_those_of_the_exact_reference(problem):
    topology, flows = problem
    exact = arrival_times(flows, [link.bandwidth for link in topology.links], Fraction(1, 2))
    assert arrivals(flows, topology, MODEL) == pytest.approx([float(time or 0) for time in exact], rel=1e-9)


NETWORK = NetworkModel.of(alpha_us=1, link_latency_us="0.1", hop_us="0.3", link_gbps=400)
SIZES = (1, 10**5, 10**9)


@pytest.mark.parametrize("method", ["ring", "biring", "bfb"])
@pytest.mark.parametrize("spec", ["ring:7", "torus:3x5", "bipartite:3"])
def test_the_models_agree_on_symmetrical_patterns(method, spec):
    pattern = traffic_of(synthesized(method, spec, ALLREDUCE).schedule)
    assert simulate(pattern, NETWORK, SIZES, "flow") == pytest.approx(simulate(pattern, NETWORK, SIZES), rel=1e-9)


def test_ranks_do_not_wait_for_others_steps():
    # Rank 0 sends a lot to rank 1 in step 0; ranks 2 and 3, which have no part in that, exchange in both steps.
    topology = parse_topology("complete:4")
    link = {(int(u), int(v)): i for i, (u, v) in enumerate(zip(topology.links.src, topology.links.dst, strict=True))}

    def step(**amounts: int) -> TrafficStep:
        found = sorted((link[int(name[1]), int(name[2])], amount) for name, amount in amounts.items())
        return TrafficStep(np.array([one for one, _ in found], np.int32), np.array([amount for _, amount in found]))

    steps = (step(_01=8, _23=1, _32=1), step(_23=8, _32=8, _10=1))
    pattern = Traffic(topology, ALLREDUCE, "stepped", steps, 8, Routes.direct(len(topology.links)))
    assert simulate(pattern, BYTE_A_SECOND, [8]) == [16]
    assert simulate(pattern, BYTE_A_SECOND, [8], "flow") == [9]


@pytest.mark.parametrize("chunks", [1, 16])
def test_streams_take_what_the_formula_says_along_a_chain(chunks):
    model = NetworkModel.of(alpha_us=1e6, hop_us=2e6, link_gbps="8e-9")
    assert simulate(streaming(4), model, [6], "flow", pipeline_chunks=chunks) == pytest.approx(
        simulate(streaming(4), model, [6], "step", pipeline_chunks=chunks)
    )


@pytest.mark.parametrize(
    ("spec", "collective"), [("torus:3x4", ALLREDUCE), ("genkautz:2,6", ALLGATHER), ("kautz:2,1", REDUCE_SCATTER)]
)
def test_traffic_of_the_symmetric_form_is_that_of_its_expansion(spec, collective):
    topology = parse_topology(spec)
    assert topology.automorphisms
    symmetric = symmetric_bfb(topology, collective, SerialExecutor())
    one, other = traffic_of(symmetric), traffic_of(symmetric.expand())
    assert one.denominator == other.denominator
    for left, right in zip(one.steps, other.steps, strict=True):
        assert (left.route.tolist(), left.amount.tolist()) == (right.route.tolist(), right.amount.tolist())


def test_runs_that_would_not_fit_are_refused_before_anything_is_built():
    step = TrafficStep(np.arange(4096, dtype=np.int32), np.ones(4096, dtype=np.int64))
    topology = parse_topology("uniring:1,4096")
    long = Traffic(topology, ALLGATHER, "stepped", (step,) * 8190, 4096, Routes.direct(4096))
    with pytest.raises(InvalidInput, match="use the congestion model"):
        simulate(long, NETWORK, [10**6], "flow")
    assert simulate(long, NETWORK, [10**6]) == pytest.approx([8190 * (1.4e-6 + 10**6 / 4096 * 8 / 400e9)])
    with pytest.raises(InvalidInput, match="fewer chunks"):
        simulate(streaming(2000), NETWORK, SIZES, "flow", pipeline_chunks=2**16)


def test_bad_choices_are_refused():
    with pytest.raises(InvalidInput, match="unknown model 'packet'; choose from step, flow"):
        as_fidelity("packet")
    with pytest.raises(InvalidInput, match="divided into 1 to 65536 chunks, got 0"):
        simulate(streaming(2), NETWORK, SIZES, "step", pipeline_chunks=0)
    with pytest.raises(InvalidInput, match="has no link rates"):
        simulate(streaming(2), NetworkModel.of(), SIZES)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"alpha_us": -1}, "alpha .* must not be negative"),
        ({"link_latency_us": "fast"}, "must be a rational number"),
        ({"hop_us": "-0.3"}, "hop latency .* must not be negative"),
        ({"link_gbps": 0}, "must be above zero"),
    ],
)
def test_bad_networks_are_refused(model, message):
    with pytest.raises(InvalidInput, match=message):
        NetworkModel.of(**model)
