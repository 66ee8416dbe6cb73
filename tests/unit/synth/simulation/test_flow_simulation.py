"""The flow-level simulation: closed forms, an exact reference, bounds and repeatability."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.errors import InvalidInput
from chorale.synth.schedule.schedule import Routes
from chorale.synth.simulation.flow_simulation import FlowTimes, MessageGraph, NetworkModel, simulate_flows
from chorale.synth.topology.links import Link, Links
from chorale.synth.topology.topology import Topology
from tests.reference.fair_flows import Flow, arrival_times
from tests.strategies import MIXED, strongly_connected_topologies

BYTE_A_SECOND = NetworkModel.of(link_gbps="8e-9")


def path_network(*bandwidths: int) -> Topology:
    """Nodes in a row: link i goes from node i to node i + 1."""
    count = len(bandwidths) + 1
    links = Links.build(Link(i, i + 1, Fraction(bandwidth)) for i, bandwidth in enumerate(bandwidths))
    return Topology("path", tuple(map(str, range(count))), count, links)


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


def test_messages_without_bytes_take_only_latency():
    model = NetworkModel.of(hop_us=1e6, link_gbps="8e-9")
    flows = [Flow(Fraction(0), (0,)), Flow(Fraction(0), (1,), after_arrival=(0,))]
    assert arrivals(flows, path_network(1, 1), model) == [1, 2]


def test_what_waits_for_itself_never_happens():
    flows = [Flow(Fraction(1), (0,)), Flow(Fraction(1), (0,), after_arrival=(1,))]
    times = simulate_flows(graph_of(flows), path_network(1), BYTE_A_SECOND, 1.0)
    assert np.isnan(times.arrived_s).tolist() == [False, True]
    assert np.isnan(times.opened_s).tolist() == [False, True]
    assert times.end_s == 1


def test_nothing_to_do_takes_no_time():
    nothing = MessageGraph(Routes.of_paths([]), *(np.zeros(0, int),) * 2, 0, *(np.zeros(0, int),) * 2)
    assert simulate_flows(nothing, path_network(1), BYTE_A_SECOND, 1.0).end_s == 0


def test_progress_is_reported_and_ends_at_all():
    flows = [Flow(Fraction(1), (0,), after_left=(index - 1,) if index else ()) for index in range(9)]
    heard = []
    simulate_flows(
        graph_of(flows),
        path_network(1),
        BYTE_A_SECOND,
        1.0,
        progress=lambda *done: heard.append(done),
        moments_at_once=2,
    )
    assert heard == sorted(heard)
    assert len(heard) > 2
    assert {total for _, total in heard} == {9}


def test_too_large_runs_are_refused():
    graph = graph_of([Flow(Fraction(1), (0, 1))] * 2)
    with pytest.raises(InvalidInput, match="at most 3 links together"):
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
        flows.append(Flow(Fraction(draw(st.integers(1, 12))), tuple(walk), Fraction(len(walk), 4), *waits))
    return topology, flows


MODEL = NetworkModel.of(alpha_us=5e5, hop_us=25e4, link_gbps="8e-9")


def capacities(topology: Topology) -> list[Fraction]:
    return [topology.links.bandwidths[index] for index in topology.links.bandwidth_class]


@given(problems())
def test_times_are_those_of_the_exact_reference(problem):
    topology, flows = problem
    exact = arrival_times(flows, capacities(topology), Fraction(1, 2))
    assert arrivals(flows, topology, MODEL) == pytest.approx([float(time or 0) for time in exact], rel=1e-9)


@given(problems())
def test_the_same_run_gives_the_same_bytes(problem):
    topology, flows = problem

    def run() -> FlowTimes:
        return simulate_flows(graph_of(flows), topology, MODEL, 1.0)

    assert run().arrived_s.tobytes() == run().arrived_s.tobytes()
