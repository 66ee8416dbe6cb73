"""Whether a request fits into memory."""

from dataclasses import dataclass

import psutil
import pytest

from chorale.runners.api.validation import memory_shortage
from tests.conformance.example_programs import scratch_allreduce_of_pair
from tests.conformance.runner_kit import RING, request_of


@dataclass
class _Memory:
    available: int


@pytest.mark.parametrize(("work_bytes", "needed"), [(0, 4 * 3 * 1000), (8, 4 * (3 * 1000 + 250 * 8))])
def test_every_rank_needs_its_vectors_and_its_work(
    monkeypatch: pytest.MonkeyPatch, work_bytes: int, needed: int
) -> None:
    request = request_of(RING, sizes_bytes=(10, 1000))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: _Memory(needed))
    assert memory_shortage(request, work_bytes) is None
    monkeypatch.setattr(psutil, "virtual_memory", lambda: _Memory(needed - 1))
    assert "1000 bytes on 4 ranks need about 0.0 GB of memory" in (memory_shortage(request, work_bytes) or "")


def test_scratch_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    request = request_of(scratch_allreduce_of_pair(), "complete:2", sizes_bytes=(1000,))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: _Memory(2 * 4 * 1000))
    assert memory_shortage(request, 0) is None
    monkeypatch.setattr(psutil, "virtual_memory", lambda: _Memory(2 * 4 * 1000 - 1))
    assert memory_shortage(request, 0) is not None
