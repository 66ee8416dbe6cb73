"""How the processes of a request are started, and who is to blame when one ends; what ranks do, live tests show."""

import sys
import time
from pathlib import Path

import pytest

from chorale.runners.api.base import FailureKind
from chorale.runners.execution.rounds import DeadlinePassed, RunStopped
from chorale.runners.oneccl.ranks import OneCclRanks, RankPlacement, local_ranks
from chorale.runners.process_launch.processes import LocalHost

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


def test_one_that_fails_before_it_speaks_is_named_with_its_last_words() -> None:
    with pytest.raises(RunStopped, match="rank 1 ended with code 1: no luck") as stopped:
        _ranks([LocalHost()] * 2, FIRST_1="sys.exit('no luck')")
    assert (stopped.value.kind, stopped.value.rank) == (FailureKind.CRASH, 1)


def test_one_that_never_speaks_is_a_timeout() -> None:
    with pytest.raises(DeadlinePassed, match="the ranks were started"):
        _ranks([LocalHost()], limit_s=0.5, FIRST_0="time.sleep(60)")


def test_a_stranger_is_sent_away() -> None:
    stranger = "import socket as s; x = s.socket(s.AF_UNIX); x.connect(meeting); x.sendall(b'\\x02\\0\\0\\0{}')"
    ranks = _ranks([LocalHost()], FIRST_0=stranger)
    ranks.close()
    assert len(ranks.pids) == 1


def test_a_violent_death_is_the_cause_before_others_give_up() -> None:
    give_up, killed = "sys.exit(4)", "os.kill(os.getpid(), 11)"
    stopped = _stopped(_ranks([LocalHost()] * 3, THEN_0=give_up, THEN_2=killed))
    assert (stopped.kind, stopped.rank, stopped.message) == (FailureKind.CRASH, 2, "rank 2 was killed by SIGSEGV")


def test_a_missing_algorithm_is_a_rejection() -> None:
    stopped = _stopped(_ranks([LocalHost()], THEN_0="say(answer='error', message='can not select algo for it')"))
    assert (stopped.kind, stopped.rank) == (FailureKind.REJECTED, 0)


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    ranks = _ranks([LocalHost()] * 2)
    ranks.close()
    ranks.close()
    assert not list(tmp_path.iterdir())


def test_positions_are_counted_for_each_address() -> None:
    places = [LocalHost(address) for address in "abacb"]
    assert local_ranks(places) == [(0, 2), (0, 2), (1, 2), (0, 1), (1, 2)]
