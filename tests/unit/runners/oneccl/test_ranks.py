"""Where ranks of oneCCL run, how they start, who is to blame when one ends, and which sizes its algorithms get."""

import re
import sys
import time
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from chorale.runners.api.base import FailureKind
from chorale.runners.execution import started_ranks
from chorale.runners.execution.rounds import DeadlinePassed, RunStopped
from chorale.runners.fabric.fabric import EmulatedFabric
from chorale.runners.oneccl import runner
from chorale.runners.oneccl.runner import (
    ALGORITHMS,
    VARIABLES,
    OneCclRanks,
    RankPlacement,
    library_sizes,
    place_ranks,
)
from chorale.runners.process_launch.processes import LocalHost
from chorale.synth.collective import STANDARD, CollectiveName
from chorale.synth.errors import InvalidInput, Unavailable
from chorale.synth.topology.spec import parse_topology
from tests.conformance import runner_kit

RING = parse_topology("ring:4")
UP = EmulatedFabric("up", "ring:4", RING.id, Fraction(50), 4, 0, 400, False, 1)
CLUSTER = RankPlacement([LocalHost("10.0.0.1")] * 4, {"network": "cluster"})


def _world(monkeypatch: pytest.MonkeyPatch, *, fabric: bool, cluster: bool) -> None:
    found = UP if fabric else None
    monkeypatch.setattr(runner, "find_fabric", lambda topology_id, name: found if name in (None, "up") else None)
    monkeypatch.setattr(runner, "_cluster", lambda topology: CLUSTER if cluster else None)


def test_a_fabric_comes_before_a_cluster_and_a_cluster_before_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    _world(monkeypatch, fabric=True, cluster=True)
    ground = place_ranks(RING, None, None)
    assert ground.facts == UP.facts()
    assert {"network": "fabric", "fabric": "up", "link_mbps": 50.0}.items() <= ground.facts.items()
    assert [place.address for place in ground.hosts] == [f"10.99.0.{rank + 1}" for rank in range(4)]
    assert place_ranks(RING, "cluster", None) is CLUSTER
    _world(monkeypatch, fabric=False, cluster=True)
    assert place_ranks(RING, None, None) is CLUSTER


@pytest.mark.parametrize(
    ("cluster", "where", "fabric"),
    [(True, None, "other"), (True, "fabric", None), (True, "fabric", "other"), (False, None, None)],
)
def test_what_is_not_there_is_not_replaced(
    monkeypatch: pytest.MonkeyPatch, cluster: bool, where: str | None, fabric: str | None
) -> None:
    _world(monkeypatch, fabric=False, cluster=cluster)
    with pytest.raises(Unavailable, match="needs a fabric that is up, or a Ray cluster with a node for each rank"):
        place_ranks(RING, where, fabric)


def test_loopback_is_taken_when_asked_for_and_unknown_places_are_refused() -> None:
    ground = place_ranks(RING, "loopback", None)
    assert [place.address for place in ground.hosts] == ["127.0.0.1"] * 4
    assert ground.facts == {"network": "loopback"}
    with pytest.raises(InvalidInput, match="unknown place to run 'moon'; choose from fabric, cluster, loopback"):
        place_ranks(RING, "moon", None)


RANK = """
import json, os, socket, struct, sys, time
meeting, rank, ranks, address = sys.argv[1:]
exec(os.environ.get(f"FIRST_{rank}", ""))
host, _, port = meeting.rpartition(":")
stream = socket.create_connection((host, int(port))) if host else socket.socket(socket.AF_UNIX)
host or stream.connect(meeting)
def say(**document):
    text = json.dumps(document).encode()
    stream.sendall(struct.pack("<I", len(text)) + text)
exec(os.environ.get(f"BEFORE_HELLO_{rank}", ""))
def hear():
    return json.loads(stream.recv(struct.unpack("<I", stream.recv(4))[0]))
say(answer="hello", rank=int(rank), token=os.environ["CHORALE_TOKEN"], pid=os.getpid(), clock="", store="")
hear()
exec(os.environ.get(f"THEN_{rank}", ""))
say(answer="seen", words=[address, os.environ["CCL_LOCAL_RANK"], os.environ["CCL_LOCAL_SIZE"], open("file").read()])
time.sleep(60)
"""


def _ranks(hosts: list[LocalHost], limit_s: float = 20.0, address: str = "", **environment: str) -> OneCclRanks:
    argv = (sys.executable, "-S", "-c", RANK)
    deadline = time.monotonic() + limit_s
    return OneCclRanks(RankPlacement(hosts, {}, address), argv, {"file": b"content"}, environment, deadline)


def _stopped(ranks: OneCclRanks) -> RunStopped:
    try:
        with pytest.raises(RunStopped) as stopped:
            ranks.request({}, time.monotonic() + 20, "they spoke")
    finally:
        ranks.close()
    return stopped.value


@pytest.mark.parametrize("address", ["", "127.0.0.1"])
def test_ranks_know_their_place_among_those_of_their_host(address: str) -> None:
    ranks = _ranks([LocalHost(), LocalHost("127.0.0.2"), LocalHost()], address=address)
    answers = ranks.request({}, time.monotonic() + 20, "they spoke")
    ranks.close()
    assert [answers[rank]["words"] for rank in range(3)] == [
        ["127.0.0.1", "0", "2", "content"],
        ["127.0.0.2", "0", "1", "content"],
        ["127.0.0.1", "1", "2", "content"],
    ]
    assert len(set(ranks.pids)) == 3


def test_one_that_fails_before_it_speaks_is_named_and_one_that_never_speaks_is_a_timeout() -> None:
    with pytest.raises(RunStopped, match="rank 1 ended with code 1: no luck") as stopped:
        _ranks([LocalHost()] * 2, FIRST_1="sys.exit('no luck')")
    assert (stopped.value.kind, stopped.value.rank) == (FailureKind.CRASH, 1)
    with pytest.raises(DeadlinePassed, match="the ranks were started"):
        _ranks([LocalHost()], limit_s=0.5, FIRST_0="time.sleep(60)")


STRANGER = "import socket as s; x = s.socket(s.AF_UNIX); x.connect(meeting); x.sendall(b'\\x02\\0\\0\\0{}')"


@pytest.mark.parametrize("moment", ["FIRST_0", "BEFORE_HELLO_0"])
def test_strangers_are_sent_away_and_ranks_may_take_their_time_before_their_hello(
    moment: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(started_ranks, "_HELLO_S", 0.01)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    ranks = _ranks([LocalHost()] * 2, **{moment: STRANGER if moment == "FIRST_0" else "time.sleep(0.5)"})
    ranks.close()
    ranks.close()
    assert len(ranks.pids) == 2
    assert not list(tmp_path.iterdir())


def test_a_violent_death_is_the_cause_before_others_give_up_and_a_missing_algorithm_a_rejection() -> None:
    give_up, killed = "sys.exit(4)", "os.kill(os.getpid(), 11)"
    stopped = _stopped(_ranks([LocalHost()] * 3, THEN_0=give_up, THEN_2=killed))
    assert (stopped.kind, stopped.rank, stopped.message) == (FailureKind.CRASH, 2, "rank 2 was killed by SIGSEGV")
    stopped = _stopped(_ranks([LocalHost()], THEN_0="say(answer='error', message='can not select algo for it')"))
    assert (stopped.kind, stopped.rank) == (FailureKind.REJECTED, 0)


RANKS = 4
BYTES = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2, "int32": 4, "int64": 8}


def _sizes(  # type: ignore[no-untyped-def]
    collective: CollectiveName, sizes_bytes: tuple[int, ...], dtype: str = "float32"
):
    library = ALGORITHMS[collective]
    return library_sizes(
        runner_kit.request_of(runner_kit.RING, sizes_bytes=sizes_bytes, dtype=dtype, library=library), collective
    )


def test_the_variable_lists_a_range_for_each_algorithm_and_none_without() -> None:
    elements, environment = _sizes(CollectiveName.REDUCE_SCATTER, (4096,))
    assert elements == {("ring", 0): 1024, ("naive", 0): 1040}
    assert environment == {"CCL_REDUCE_SCATTER": "ring:1024-1039;naive:1040-1055"}
    assert library_sizes(runner_kit.request_of(runner_kit.RING), CollectiveName.ALLREDUCE) == ({}, {})


@given(
    st.sampled_from(list(STANDARD)),
    st.lists(st.integers(1, 10_000), min_size=1, max_size=5),
    st.sampled_from(list(BYTES)),
)
def test_every_size_belongs_to_its_algorithm_alone(collective: CollectiveName, wanted: list[int], dtype: str) -> None:
    sizes, environment = _sizes(collective, tuple(wanted), dtype)
    text = environment[VARIABLES[collective]]
    ranges = [(name, int(low), int(high)) for name, low, high in re.findall(r"([^;:]+):([0-9]+)-([0-9]+)", text)]
    shards = RANKS if collective.value in ("allgather", "reduce_scatter", "alltoall") else 1
    assert len(sizes) == len(ranges) == len(wanted) * len(ALGORITHMS[collective])
    for (algorithm, position), elements in sizes.items():
        assert elements % shards == 0
        seen_bytes = elements * BYTES[dtype] // shards  # what oneCCL looks up
        assert [name for name, low, high in ranges if low <= seen_bytes <= high] == [algorithm]
        size_bytes = elements * BYTES[dtype]
        assert wanted[position] <= size_bytes
        assert size_bytes - wanted[position] <= 16 * shards * len(ranges)
