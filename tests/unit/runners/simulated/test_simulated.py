"""The simulated runner: the kit of every runner, and times that can be worked out by hand."""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any

import pytest

from chorale.runners.api.base import FailureKind, RunRequest
from chorale.runners.simulated.program_flows import ProgramFlows
from chorale.runners.simulated.runner import SimulatedRunner
from chorale.synth.collective import ALLGATHER, Collective, CollectiveName
from chorale.synth.errors import InvalidInput
from chorale.synth.programs.program import BufferRef, Op, Program, ThreadBlock
from chorale.synth.simulation.simulate import NetworkModel, simulate_flows
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Link, Links, Topology
from tests.conformance import runner_kit
from tests.conformance.example_programs import program_of, rank_of, ring_allgather, ring_allreduce, star_broadcast, step
from tests.unit.synth.lowering.programs import lowered, verified


def _runner() -> SimulatedRunner:
    return SimulatedRunner(NetworkModel.of(link_gbps=1))


@pytest.mark.parametrize("check", runner_kit.CHECKS, ids=lambda check: check.__name__)
def test_conformance(check: Callable[[runner_kit.Factory], None]) -> None:
    check(_runner)


def _seconds(program: Program, topology: Topology, chunk_bytes: int, **model: float | str) -> Any:
    """Return the simulated time, to be compared up to rounding."""
    flows = ProgramFlows(program, topology)
    times = simulate_flows(flows.graph, topology, NetworkModel.of(**model), chunk_bytes)
    assert not flows.stuck(times)
    return pytest.approx(times.end_s, rel=1e-12)


def test_a_ring_takes_its_steps_and_messages_share_a_link_one_after_the_other() -> None:
    # 2 (n - 1) steps, each alpha + latency + one chunk: 14 * (3 us + 0.5 us + 1000 B * 8 / 10 Gbit/s)
    program, topology = ring_allreduce(range(8)), parse_topology("ring:8")
    seconds = _seconds(program, topology, 1000, alpha_us=3, link_latency_us="0.5", link_gbps=10)
    assert seconds == 14 * (Fraction(7, 2) + Fraction(8, 10)) / 10**6
    # All four messages of the root leave over the one link 0 -> 1 of a path: 4 chunks of 8 us, the last one goes on.
    topology = parse_topology("mesh:5")
    assert _seconds(star_broadcast(5, root=0), topology, 1000, link_gbps=1) == Fraction(32, 10**6)


@pytest.mark.parametrize(
    ("method", "collective", "spec"),
    [
        ("bfb", "allreduce", "torus:3x3"),
        ("bfb", "allgather", "bipartite:3"),
        ("ring", "reduce_scatter", "circulant:9,1,2"),
        ("biring", "allreduce", "hypercube:3"),
    ],
)
def test_lowered_schedules_take_exactly_what_their_cost_says(method: str, collective: str, spec: str) -> None:
    program, cost = lowered(spec, collective, method=method), verified(spec, collective, method).cost
    seconds = _seconds(program, parse_topology(spec), 1000, link_gbps=8)
    assert seconds == cost.time_per_byte * program.chunks * 1000 / 10**9


def test_messages_flow_at_the_pace_of_a_slow_second_link_and_channels_choose_among_parallel_ones() -> None:
    links = Links.build(
        [Link(0, 2, Fraction(4)), Link(2, 1, Fraction(1)), Link(1, 2, Fraction(4)), Link(2, 0, Fraction(4))]
    )
    topology = Topology("", ("a", "b", "switch"), 2, links, "Gbit/s")
    program = star_broadcast(2, root=0)
    assert _seconds(program, topology, 1000, link_latency_us=1) == Fraction(8 + 2, 10**6)
    assert _seconds(star_broadcast(2, root=1), topology, 1000, link_latency_us=1) == Fraction(2 + 2, 10**6)
    pair = Topology("", ("a", "b"), 2, Links.build([Link(0, 1), Link(0, 1), Link(1, 0), Link(1, 0)]))
    send = [ThreadBlock(1, None, channel, (step(Op.SEND, "o", channel),)) for channel in (0, 1)]
    receive = [ThreadBlock(None, 0, channel, (step(Op.RECV, "o", channel),)) for channel in (0, 1)]
    program = program_of(Collective(star_broadcast(2, 0).collective.name, 0), 2, [rank_of(*send), rank_of(*receive)])
    assert _seconds(program, pair, 1000, link_gbps=1) == Fraction(8, 10**6)


def _eager_exchange(messages: int) -> Program:
    """Both ranks send everything before they receive anything: it needs queues of `messages` messages."""
    ranks = []
    for rank in range(2):
        sends = [step(Op.SEND, "o", rank * messages + number) for number in range(messages)]
        receives = [step(Op.RECV, "o", (1 - rank) * messages + number) for number in range(messages)]
        ranks.append(rank_of(ThreadBlock(1 - rank, 1 - rank, 0, (*sends, *receives))))
    return program_of(ALLGATHER, 2 * messages, ranks)


@pytest.mark.parametrize("buffer_bytes", [None, 64], ids=["at once", "in loops"])
def test_a_send_waits_for_room_in_the_queue(buffer_bytes: int | None) -> None:
    """Rank 0 sends once more than it may be ahead, and rank 1 takes only when its own send has gone."""
    runner = SimulatedRunner(NetworkModel.of(link_gbps=1), buffer_bytes)
    two, three = (runner_kit.request_of(_eager_exchange(messages), "complete:2") for messages in (2, 3))
    runner_kit.measured(runner.submit(two))
    failure = runner_kit.failed(runner.submit(three), FailureKind.TIMEOUT)
    assert failure.blocked == ((0, 0, 2), (1, 0, 2))
    assert "waits for rank 1 to take one of 2 messages" in failure.message
    roomy = replace(_eager_exchange(3), protocol="LL")
    runner_kit.measured(runner.submit(runner_kit.request_of(roomy, "complete:2")))


def _chain_broadcast(ranks: int) -> Program:
    """Every rank but the last passes on what comes, as it comes."""
    blocks = [ThreadBlock(1, None, 0, (step(Op.SEND, "o", 0),))]
    blocks += [ThreadBlock(rank + 1, rank - 1, 0, (step(Op.RECV_COPY_SEND, "o", 0),)) for rank in range(1, ranks - 1)]
    blocks.append(ThreadBlock(None, ranks - 2, 0, (step(Op.RECV, "o", 0),)))
    return program_of(Collective(CollectiveName.BROADCAST, 0), 1, [rank_of(block) for block in blocks])


@pytest.mark.parametrize(("buffer_bytes", "pieces"), [(None, 1), (1024, 64), (4096, 16), (2**20, 2)])
def test_long_chunks_stream_through_buffers(buffer_bytes: int | None, pieces: int) -> None:
    # Half a buffer is a loop, a loop two slices; each hop of the chain adds the time of one slice.
    runner = SimulatedRunner(NetworkModel.of(link_gbps=8), buffer_bytes)
    request = runner_kit.request_of(_chain_broadcast(5), "mesh:5", size_bytes=2**14)
    (result,) = runner_kit.measured(runner.submit(request)).results["program"]
    assert result.median_s == pytest.approx(2**14 / 1e9 * (pieces + 3) / pieces)


def test_instructions_of_a_block_overlap_with_those_of_others_from_loop_to_loop() -> None:
    # A ring has no slack: cutting it into loops neither helps nor hurts; more loops cost alpha again.
    topology, program = parse_topology("ring:4"), ring_allreduce(range(4))
    whole = simulate_flows(ProgramFlows(program, topology).graph, topology, NetworkModel.of(link_gbps=8), 1000)
    flows = ProgramFlows(program, topology, loops=5)
    assert simulate_flows(flows.graph, topology, NetworkModel.of(link_gbps=8), 200).end_s == pytest.approx(whole.end_s)
    slow = simulate_flows(flows.graph, topology, NetworkModel.of(1, link_gbps=8), 200).end_s
    assert slow == pytest.approx(whole.end_s + 5 * 6e-6)


def test_the_same_request_gives_the_same_outcome() -> None:
    request = runner_kit.request_of(ring_allgather(4, in_place=False))
    assert _runner().submit(request) == _runner().submit(request)


def test_races_are_found_although_the_replay_has_one_order() -> None:
    racing = ThreadBlock(None, None, 0, (step(Op.COPY, "o", 0, source="o"), step(Op.COPY, "o", 1, source="o")))
    moved = replace(racing.instructions[0], src=BufferRef("o", 1))
    program = ring_allreduce(range(4))
    changed = replace(program.ranks[0], blocks=(*program.ranks[0].blocks, replace(racing, instructions=(moved,))))
    request = runner_kit.request_of(replace(program, ranks=(changed, *program.ranks[1:])))
    runner_kit.failed(_runner().submit(request), FailureKind.WRONG_RESULT)


def test_a_unit_capacity_network_needs_a_rate_and_a_buffer_must_hold_something() -> None:
    with pytest.raises(InvalidInput, match="has no link rates"):
        SimulatedRunner(NetworkModel.of()).submit(runner_kit.request_of(ring_allreduce(range(4))))
    with pytest.raises(InvalidInput, match="at least one byte"):
        SimulatedRunner(NetworkModel.of(), 0)


def test_loops_over_deep_trees_overlap_where_channels_take_levels() -> None:
    """One block for all levels goes through a whole tree in every loop; measured beside what the schedule says."""
    topology = parse_topology("mi250half:2")
    cost, chunk_bytes, loops = verified("mi250half:2", "allreduce", "forest").cost, 2**24, 32
    share = {}
    for channels in (1, 4):
        program = lowered("mi250half:2", "allreduce", method="forest", channels=channels)
        flows = ProgramFlows(program, topology, loops, slices=2)
        end_s = simulate_flows(flows.graph, topology, NetworkModel.of(), chunk_bytes / loops / 2).end_s
        share[channels] = float(cost.time_per_byte) * chunk_bytes * program.chunks / 1e9 / end_s
    assert share[1] < 0.55
    assert share[4] > 0.8


def test_programs_that_become_plans_are_priced_as_plans() -> None:
    """Small messages are faster as packets, large ones without flags; with alpha there are no other latencies."""
    ring = parse_topology("ring:4")
    made = partial(lowered, "ring:4", "allreduce", "mscclpp-json", "ring")
    programs = {name: made(protocol=name) for name in ("Simple", "LL")}
    request = RunRequest(ring, programs, (1024, 2**26), repeats=1)
    times = {}
    for model in (NetworkModel.of(link_gbps=400), NetworkModel.of(link_gbps=400, alpha_us=1)):
        outcome = runner_kit.measured(SimulatedRunner(model).submit(request))
        times[model.alpha_s] = {name: [size.times_s[0] for size in rows] for name, rows in outcome.results.items()}
    plain = times[Fraction(0)]
    assert plain["LL"][0] < plain["Simple"][0]
    assert plain["LL"][1] > plain["Simple"][1]
    with_alpha = times[Fraction(1, 10**6)]
    assert with_alpha["Simple"][0] < plain["Simple"][0]
