"""Times of programs side by side on an emulated network, as a few numbers for each program and size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from chorale.experiments.live_fabric import measure_live
from chorale.runners.api.base import RunFailure, RunRequest
from chorale.synth.errors import CheckFailed
from chorale.synth.programs.program import Program
from chorale.synth.topology.topology import Topology

_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class LiveTimes:
    """What was measured.

    seconds:    by program, for each size that was asked for, those of every repetition
    where:      on what it ran
    substitute: why that is not oneCCL on a fabric; None where it is
    """

    seconds: Mapping[str, tuple[tuple[float, ...], ...]]
    where: str
    substitution: str | None

    def min_us(self, program: str, size_index: int) -> float:
        """Return the shortest time of `program` at the size in that place: whatever disturbs only ever adds."""
        return min(self.seconds[program][size_index]) * 1e6


def measure_times(
    topology: Topology, programs: Mapping[str, Program], sizes_bytes: Sequence[int], link_mbps: int, repeats: int
) -> LiveTimes:
    """Return the times of `programs` on links of `link_mbps`; raises CheckFailed for a run that fails."""
    request = RunRequest(topology, programs, tuple(sizes_bytes), repeats, timeout_s=_TIMEOUT_S)
    run = measure_live(request, link_mbps)
    if isinstance(run.outcome, RunFailure):
        value = f"{run.outcome.kind} on {topology.spec}: {run.outcome.message}"
        raise CheckFailed("a live run must end with right results", value, "run it again when the machine is less busy")
    seconds = {name: tuple(one.times_s for one in sizes) for name, sizes in run.outcome.results.items()}
    return LiveTimes(seconds, run.runner, run.substitution)
