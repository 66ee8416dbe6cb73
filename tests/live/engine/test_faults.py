"""Ranks that are killed or stopped in the middle of an execution."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chorale.runners.engine.library import encode_rank
from chorale.synth.programs.program import QUEUE_DEPTH
from tests.unit.synth.lowering.programs import lowered

ROOT = Path(__file__).parents[3]
RANKS = 4
VICTIM = 2
MARGIN_S = 1.0  # beyond a deadline, on a busy machine


class Processes:
    """The ranks of an allreduce, one process each, connected."""

    def __init__(self, transport: str, fault: str, fault_step: int, limit_s: float) -> None:
        program = lowered(f"ring:{RANKS}", "allreduce")
        command = [sys.executable, "-m", "tests.live.engine.rank_process"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.ranks = [subprocess.Popen(command, cwd=ROOT, **pipes) for _ in range(RANKS)]  # type: ignore[call-overload]
        depth = QUEUE_DEPTH[program.protocol]
        for rank, part in enumerate(program.ranks):
            words = encode_rank(program.collective, RANKS, program.chunks, program.in_place, depth, part)
            name = "tcp:127.0.0.1" if transport == "tcp" else f"{transport}:chorale-faults-{os.getpid()}-{rank}"
            task = {"rank": rank, "ranks": RANKS, "words": list(words), "address": name, "limit_s": limit_s}
            task |= {"elements": 200_003, "fault": fault if rank == VICTIM else "", "fault_step": fault_step}
            self.tell(rank, task)
        addresses = [self.hear(rank) for rank in range(RANKS)]
        for rank in range(RANKS):
            self.tell(rank, addresses)

    def tell(self, rank: int, what: object) -> None:
        stream = self.ranks[rank].stdin
        assert stream is not None
        stream.write(f"{json.dumps(what)}\n")
        stream.flush()

    def hear(self, rank: int) -> Any:
        stream = self.ranks[rank].stdout
        assert stream is not None
        line = stream.readline()
        return json.loads(line) if line else {"status": "DEAD"}

    def close(self) -> None:
        for process in self.ranks:
            process.kill()
            process.communicate()


@pytest.fixture
def processes(request: pytest.FixtureRequest) -> Iterator[Processes]:
    made = Processes(*request.param)
    yield made
    made.close()


@pytest.mark.parametrize(
    "processes",
    [(transport, "SIGKILL", step, 20.0) for transport, step in (("tcp", 1), ("unix", 3), ("shm", 7))],
    indirect=True,
)
def test_the_others_notice_soon_that_a_rank_was_killed(processes: Processes) -> None:
    assert [processes.hear(rank)["status"] for rank in range(RANKS)] == ["OK"] * RANKS
    ends = [processes.hear(rank) for rank in range(RANKS)]
    assert ends[VICTIM]["status"] == "DEAD"
    others = [end for rank, end in enumerate(ends) if rank != VICTIM]
    assert {end["status"] for end in others} <= {"OK", "PEER_LOST"}, ends
    assert any(end["status"] == "PEER_LOST" and f"rank {VICTIM} " in end["message"] for end in others), ends
    assert all(end["elapsed_s"] < 5.0 for end in others), ends


@pytest.mark.parametrize(
    "processes", [(transport, "SIGSTOP", 3, 1.0) for transport in ("tcp", "unix", "shm")], indirect=True
)
def test_a_stopped_rank_ends_in_timeouts_that_say_what_was_awaited(processes: Processes) -> None:
    assert [processes.hear(rank)["status"] for rank in range(RANKS)] == ["OK"] * RANKS
    ends = [processes.hear(rank) for rank in range(RANKS) if rank != VICTIM]
    assert {end["status"] for end in ends} <= {"OK", "TIMEOUT", "PEER_LOST"}, ends
    assert all(end["elapsed_s"] < 1.0 + MARGIN_S for end in ends), ends
    timeouts = [end for end in ends if end["status"] == "TIMEOUT"]
    assert timeouts, ends
    assert all("rank" in end["blocked"] for end in timeouts), ends
