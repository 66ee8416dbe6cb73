"""The MPI runner on processes of this machine: the kit of every runner, and faults in the middle of a run."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from runners.mpi.runner import MpiRunner
from tests.conformance import runner_kit


def _runner() -> MpiRunner:
    return MpiRunner(where="loopback")


@pytest.mark.parametrize("check", runner_kit.CHECKS, ids=lambda check: check.__name__)
def test_conformance(check: Callable[[runner_kit.Factory], None]) -> None:
    check(_runner)
