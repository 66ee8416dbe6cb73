"""Sizes with messages that the kernel's bucket carries too fast are refused with the reason."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from chorale.runners.api.base import FailureKind, RunFailure
from chorale.runners.fabric.links import dishonest_size, smallest_message_bytes
from chorale.runners.mpi import runner as mpi
from chorale.runners.mpi.launch import MpiLaunch
from chorale.runners.oneccl import runner as oneccl
from chorale.runners.oneccl.ranks import RankPlacement
from chorale.runners.oneccl.runner import OneCclRunner
from tests.conformance.example_programs import star_broadcast
from tests.conformance.runner_kit import RING, request_of


def test_the_smallest_message_is_that_of_the_fewest_chunks() -> None:
    assert RING.chunks == 4
    assert smallest_message_bytes(RING, 4096) == 1024
    assert smallest_message_bytes(star_broadcast(4, 1), 4096) == 4096
    silent = replace(RING, ranks=tuple(replace(rank, blocks=()) for rank in RING.ranks))
    assert smallest_message_bytes(silent, 4096) == 4096


def test_sizes_below_are_refused_by_name() -> None:
    request = request_of(RING, size_bytes=2**18)
    assert dishonest_size(request, 2**16) is None
    reason = dishonest_size(request, 2**16 + 1)
    assert reason is not None
    assert reason.startswith("program sends messages of 65536 bytes at size 262144: the kernel's bucket carries those")
    assert dishonest_size(request, 0) is None


def test_a_library_is_taken_to_send_the_part_of_a_rank() -> None:
    request = request_of(star_broadcast(4, 1), size_bytes=2**18, library=("mpi",))
    assert dishonest_size(request, 2**16) is None
    reason = dishonest_size(request, 2**17)
    assert reason is not None
    assert reason.startswith("mpi sends messages of 65536 bytes")


def test_the_oneccl_runner_refuses_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oneccl, "build_library", lambda *_: Path(__file__))
    monkeypatch.setattr(oneccl, "engine_library", lambda *_: Path(__file__))
    monkeypatch.setattr(oneccl, "place_ranks", lambda *_: RankPlacement([], {}, honest_bytes=10**6))
    with OneCclRunner() as runner:
        outcome = runner.submit(request_of(RING, size_bytes=2**18))
    assert isinstance(outcome, RunFailure)
    assert outcome.kind == FailureKind.REJECTED
    assert "bring the fabric up with --links wire" in outcome.message


def test_the_mpi_runner_refuses_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mpi, "mpi_launch_of", lambda *_: MpiLaunch((), {}, honest_bytes=10**6))
    with mpi.MpiRunner() as runner:
        outcome = runner.submit(request_of(RING, size_bytes=2**18))
    assert isinstance(outcome, RunFailure)
    assert outcome.kind == FailureKind.REJECTED
    assert "bring the fabric up with --links wire" in outcome.message
