"""Which requests are admitted: sound programs and networks, algorithms that there are, memory that suffices."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import networkx as nx
import psutil
import pytest
from hypothesis import given, strategies as st

from chorale.runners.api.base import FailureKind, RunRequest
from chorale.runners.api.programs import Connection, ConnectionPaths, program_connections, sent_chunks
from chorale.runners.api.validation import RequestFault, memory_shortage, validate_request
from chorale.synth.programs.check_structure import message_counts
from chorale.synth.programs.program import BufferRef, Op, Program, ThreadBlock, Wait
from chorale.synth.topology.topology import Link, Links, Topology
from tests.conformance.example_programs import (
    rank_of,
    ring_allgather,
    ring_allreduce,
    scratch_allreduce_of_pair,
    star_broadcast,
    step,
)
from tests.conformance.runner_kit import RING, request_of
from tests.strategies import strongly_connected_topologies


def refusal(request: RunRequest, library: tuple[str, ...] = ()) -> str | None:
    """Return the reason of a rejection. library: of allreduce"""
    fault = validate_request(request, lambda collective: library if collective == "allreduce" else ())
    assert fault is None or fault[0] is FailureKind.REJECTED
    return None if fault is None else fault[1]


Change = Callable[[ThreadBlock], ThreadBlock]


def _changed(change: Change) -> Program:
    block = change(RING.ranks[1].blocks[0])
    return replace(RING, ranks=(RING.ranks[0], replace(RING.ranks[1], blocks=(block,)), *RING.ranks[2:]))


def _first(**fields: Any) -> Change:
    def change(block: ThreadBlock) -> ThreadBlock:
        return replace(block, instructions=(replace(block.instructions[0], **fields), *block.instructions[1:]))

    return change


IDLE = replace(RING, ranks=tuple(replace(rank, blocks=()) for rank in RING.ranks), channels=0)
UNUSED_PLACE = _changed(_first(dst=BufferRef("o", 99)))
"""A send writes nowhere."""


@pytest.mark.parametrize(
    "program", [RING, star_broadcast(4, 1), UNUSED_PLACE, IDLE, replace(RING, channels=7, target="msccl-xml")]
)
def test_a_sound_request_is_admitted_whatever_the_limits_of_its_dialect(program: Program) -> None:
    assert refusal(request_of(program)) is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_first(src=BufferRef("o", 4)), "rank 1, block 0, step 0: s reads o[4..4], outside the buffer"),
        (_first(count=0), "s moves 0 chunks, must move at least 1"),
        (_first(count=2), "from rank 1 to rank 2 on channel 0: counts sent and received differ at message 0"),
        (_first(waits=(Wait(0, 99),)), "waits for step 99 of block 0, which does not exist"),
        (lambda block: replace(block, send_peer=None), "s needs a block with a rank to send to"),
        (lambda block: replace(block, channel=1), "channel 1 is not in 0 to 0"),
    ],
)
def test_a_broken_program_is_refused_with_the_reason(change: Change, reason: str) -> None:
    assert reason in (refusal(request_of(_changed(change))) or "")


def test_two_blocks_on_one_connection_and_a_network_without_the_way_are_refused() -> None:
    rank = RING.ranks[1]
    twice = replace(RING, ranks=(RING.ranks[0], replace(rank, blocks=tuple(rank.blocks) * 2), *RING.ranks[2:]))
    assert "sends with rank 2 on channel 0, as block 0 does" in (refusal(request_of(twice)) or "")
    one_way = Topology("", tuple("abcd"), 4, Links.build([Link(0, 1), Link(1, 2), Link(2, 3)]))
    found = refusal(replace(request_of(RING), topology=one_way))
    assert "rank 3: sends to rank 0, to which the network has no path" in (found or "")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"dtype": "complex64"}, "complex64 is not supported"),
        ({"programs": {}}, "at least one program"),
        ({"sizes_bytes": ()}, "at least one program and one size"),
        ({"sizes_bytes": (0,)}, "must be positive"),
        ({"repeats": 0}, "must be positive"),
        ({"timeout_s": 0.0}, "must be positive"),
        ({"programs": {"a": RING, "b": ring_allgather(4, True)}}, "for the same collective"),
        ({"programs": {"a": replace(RING, max_bytes=100)}}, "program a is for 0 to 100 bytes, not 4096"),
        ({"programs": {"a": replace(RING, min_bytes=10**6)}}, "program a is for 1000000 to"),
        ({"programs": {"a": ring_allreduce(range(5))}}, "for 5 ranks, the topology has 4"),
        ({"programs": {"a": replace(RING, chunks=0)}}, "the vector has 0 chunks, must have at least 1"),
        (
            {"programs": {"a": replace(ring_allgather(4, True), chunks=6)}},
            "6 chunks of the vector are not a multiple of 4 ranks",
        ),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(fields: dict[str, Any], reason: str) -> None:
    assert reason in (refusal(replace(request_of(RING), **fields)) or "")


def test_only_algorithms_that_the_runtime_has_are_admitted() -> None:
    request = request_of(RING, library=("ring", "tree"))
    assert refusal(request, ("tree", "ring", "flat")) is None
    others = "the runners mpi and nccl have those of MPI and NCCL"
    only_ring = f"the runtime has no algorithm of its own named tree: it has ring; {others}"
    assert refusal(request, ("ring",)) == only_ring
    assert "named ring: it has no library" in (refusal(request) or "")
    taken = replace(request, programs={"library:tree": RING})
    assert "a program must not be named library:tree" in (refusal(taken, ("ring", "tree")) or "")


def test_the_rules_of_a_runner_come_after_those_of_all() -> None:
    asked = []

    def too_large(request: RunRequest) -> Iterator[RequestFault]:
        asked.append(request)
        yield FailureKind.UNAVAILABLE, "too large"
        raise AssertionError("one fault is enough")

    assert validate_request(request_of(RING), lambda _: (), too_large) == (FailureKind.UNAVAILABLE, "too large")
    kind, _ = validate_request(request_of(RING, dtype="int7"), lambda _: (), too_large) or (None, "")
    assert (kind, len(asked)) == (FailureKind.REJECTED, 1)


@dataclass
class _Memory:
    available: int


@pytest.mark.parametrize(
    ("request_", "work_bytes", "needed"),
    [
        (request_of(RING, sizes_bytes=(10, 1000)), 0, 4 * 3 * 1000),
        (request_of(RING, sizes_bytes=(10, 1000)), 8, 4 * (3 * 1000 + 250 * 8)),
        (request_of(scratch_allreduce_of_pair(), "complete:2", sizes_bytes=(1000,)), 0, 2 * 4 * 1000),
    ],
)
def test_every_rank_needs_its_vectors_its_scratch_and_its_work(
    monkeypatch: pytest.MonkeyPatch, request_: RunRequest, work_bytes: int, needed: int
) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: _Memory(needed))
    assert memory_shortage(request_, work_bytes) is None
    monkeypatch.setattr(psutil, "virtual_memory", lambda: _Memory(needed - 1))
    assert "1000 bytes on" in (memory_shortage(request_, work_bytes) or "")


@given(strongly_connected_topologies(switches=2), st.integers(0, 5))
def test_a_path_is_a_shortest_one_and_hangs_together(topology: Topology, channel: int) -> None:
    graph = nx.MultiDiGraph()
    graph.add_edges_from(zip(topology.links.src.tolist(), topology.links.dst.tolist(), strict=True))
    paths = ConnectionPaths(topology)
    for src in range(topology.compute_count):
        for dst in range(topology.compute_count):
            if src == dst:
                continue
            path = paths.path(Connection(src, dst, channel))
            assert path is not None
            nodes = [src, *(int(topology.links.dst[link]) for link in path)]
            assert [int(topology.links.src[link]) for link in path] == nodes[:-1]
            assert nodes[-1] == dst
            assert len(path) == nx.shortest_path_length(graph, src, dst)
            assert path == ConnectionPaths(topology).path(Connection(src, dst, channel))


def test_channels_take_turns_on_parallel_links() -> None:
    links = Links.build([Link(0, 1), Link(0, 1), Link(0, 1), Link(1, 0)])
    topology = Topology("", ("a", "b"), 2, links)
    paths, parallel = ConnectionPaths(topology), links.parallel_index()
    taken = [paths.path(Connection(0, 1, channel)) for channel in range(6)]
    assert [int(parallel[path[0]]) for path in taken if path] == [0, 1, 2, 0, 1, 2]


def test_both_ends_of_a_connection_are_listed_and_a_missing_end_is_empty() -> None:
    found = program_connections(ring_allreduce(range(3)))
    assert found == [Connection(0, 1, 0), Connection(1, 2, 0), Connection(2, 0, 0)]
    sent, received = message_counts(ring_allreduce(range(3)))
    assert sent == received == {connection: [1, 1, 1, 1] for connection in found}
    assert sent_chunks(ring_allreduce(range(3))) == {connection: 4 for connection in found}
    lonely = rank_of(ThreadBlock(1, None, 2, (step(Op.SEND, "o", 0, count=3),)))
    program = ring_allreduce(range(2))
    cut = type(program)("", "", program.collective, 3, True, "Simple", 3, (lonely, rank_of()))
    assert program_connections(cut) == [Connection(0, 1, 2)]
    assert message_counts(cut) == ({(0, 1, 2): [3]}, {})
