"""Both models together: they agree where both apply, and ranks that wait for less are never slower."""

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.collective import ALLGATHER, ALLREDUCE, REDUCE_SCATTER, Collective
from chorale.synth.errors import InvalidInput
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.methods.bfb.bfb import symmetric_bfb
from chorale.synth.methods.catalog import synthesize
from chorale.synth.methods.grid.algorithms import swing
from chorale.synth.schedule.schedule import Routes
from chorale.synth.schedule.traffic import Traffic, TrafficStep, traffic_of
from chorale.synth.simulation.flow_simulation import NetworkModel
from chorale.synth.simulation.simulate import as_fidelity, simulate
from chorale.synth.topology.spec import parse_topology
from tests.strategies import strongly_connected_topologies
from tests.unit.synth.simulation.test_congestion import streaming

NETWORK = NetworkModel.of(alpha_us=1, link_latency_us="0.1", hop_us="0.3", link_gbps=400)
SIZES = (1, 10**5, 10**9)


def traffic(method: str, spec: str, collective: Collective = ALLREDUCE) -> Traffic:
    return traffic_of(synthesize(method, parse_topology(spec), collective, None, SerialExecutor()).schedule)


@pytest.mark.parametrize("method", ["ring", "biring", "bfb"])
@pytest.mark.parametrize("spec", ["ring:7", "torus:4x4", "torus:3x5", "hypercube:4", "circulant:9,1,2", "bipartite:3"])
def test_the_models_agree_on_symmetrical_patterns(method, spec):
    pattern = traffic(method, spec)
    assert simulate(pattern, NETWORK, SIZES, "flow") == pytest.approx(simulate(pattern, NETWORK, SIZES), rel=1e-9)


@given(shift=st.integers(1, 11), amounts=st.lists(st.integers(1, 9), min_size=1, max_size=4))
def test_shifts_around_a_ring_take_their_closed_form(shift, amounts):
    # In every step each rank sends `amount` of 12 to the rank `shift` further: every link carries shift messages.
    topology = parse_topology("uniring:1,12")
    following = {int(src): link for link, src in enumerate(topology.links.src.tolist())}
    routes = Routes.of_paths([[following[(rank + hop) % 12] for hop in range(shift)] for rank in range(12)])
    everyone = np.arange(12, dtype=np.int32)
    steps = tuple(TrafficStep(everyone, np.full(12, amount)) for amount in amounts)
    pattern = Traffic(topology, ALLGATHER, "stepped", steps, 12, routes)
    expected = [
        sum(1e-6 + shift * 0.4e-6 + shift * amount * size / 12 * 8 / 400e9 for amount in amounts) for size in SIZES
    ]
    assert simulate(pattern, NETWORK, SIZES) == pytest.approx(expected)
    assert simulate(pattern, NETWORK, SIZES, "flow") == pytest.approx(expected)


@given(topology=strongly_connected_topologies(3, 7), method=st.sampled_from(["bfb", "ring"]))
def test_flows_are_bounded_by_the_busiest_link(topology, method):
    pattern = traffic_of(synthesize(method, topology, ALLGATHER, None, SerialExecutor()).schedule)
    total = sum(pattern.link_amounts(step) for step in pattern.steps).max() / pattern.denominator
    bound = total * 10**9 * 8 / 400e9
    (seconds,) = simulate(pattern, NetworkModel.of(link_gbps=400), [10**9], "flow")
    assert seconds >= bound * (1 - 1e-9)


def test_ranks_do_not_wait_for_others_steps():
    # Rank 0 sends a lot to rank 1 in step 0; ranks 2 and 3, which have no part in that, exchange in both steps.
    topology = parse_topology("complete:4")
    link = {(int(u), int(v)): i for i, (u, v) in enumerate(zip(topology.links.src, topology.links.dst, strict=True))}

    def step(**amounts: int) -> TrafficStep:
        found = sorted((link[int(name[1]), int(name[2])], amount) for name, amount in amounts.items())
        return TrafficStep(np.array([one for one, _ in found], np.int32), np.array([amount for _, amount in found]))

    steps = (step(_01=8, _23=1, _32=1), step(_23=8, _32=8, _10=1))
    pattern = Traffic(topology, ALLREDUCE, "stepped", steps, 8, Routes.direct(len(topology.links)))
    byte_a_second = NetworkModel.of(link_gbps="8e-9")
    assert simulate(pattern, byte_a_second, [8]) == [16]
    assert simulate(pattern, byte_a_second, [8], "flow") == [9]


@pytest.mark.parametrize("chunks", [1, 3, 16])
def test_streams_take_what_the_formula_says_along_a_chain(chunks):
    model = NetworkModel.of(alpha_us=1e6, hop_us=2e6, link_gbps="8e-9")
    assert simulate(streaming(4), model, [6], "flow", pipeline_chunks=chunks) == pytest.approx(
        simulate(streaming(4), model, [6], "step", pipeline_chunks=chunks)
    )


@pytest.mark.parametrize("collective", [ALLGATHER, REDUCE_SCATTER, ALLREDUCE], ids=str)
@pytest.mark.parametrize("spec", ["torus:3x4", "genkautz:2,6", "kautz:2,1", "circulant:10,2,3"])
def test_traffic_of_the_symmetric_form_is_that_of_its_expansion(collective, spec):
    topology = parse_topology(spec)
    if not topology.automorphisms:
        pytest.fail(f"{spec} must carry symmetries for this test")
    symmetric = symmetric_bfb(topology, collective, SerialExecutor())
    one, other = traffic_of(symmetric), traffic_of(symmetric.expand())
    assert one.denominator == other.denominator
    assert len(one.steps) == len(other.steps)
    for left, right in zip(one.steps, other.steps, strict=True):
        assert left.route.tolist() == right.route.tolist()
        assert left.amount.tolist() == right.amount.tolist()


def test_progress_counts_messages_of_all_sizes():
    heard: list[tuple[int, int]] = []
    pattern = traffic("ring", "ring:16")
    simulate(pattern, NETWORK, SIZES, "flow", progress=lambda done, total: heard.append((done, total)))
    messages = sum(len(step.route) for step in pattern.steps)
    assert all(total == messages * len(SIZES) for _, total in heard)


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
    with pytest.raises(InvalidInput, match="cut into 1 to 65536 chunks, got 0"):
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


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_swing_on_16384_nodes_is_simulated_in_seconds():
    pattern = swing(parse_topology("torus:128x128"), ALLREDUCE).traffic()
    start = time.monotonic()
    (step,) = simulate(pattern, NETWORK, [2**29])
    assert time.monotonic() - start < 10
    (flow,) = simulate(pattern, NETWORK, [2**29], "flow")
    assert flow == pytest.approx(step, rel=1e-9)
    assert time.monotonic() - start < 100
