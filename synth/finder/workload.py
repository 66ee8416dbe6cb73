"""How long an allreduce takes on a candidate, by the model of the papers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from chorale.synth.errors import InvalidInput
from chorale.synth.finder.candidate import TopologyCandidate


@dataclass(frozen=True, slots=True)
class Workload:
    """Allreduce of `size_bytes`, `alpha_us` microseconds for a step, `bandwidth_gbps` Gbit/s out of a whole node."""

    alpha_us: Fraction
    size_bytes: int
    bandwidth_gbps: Fraction

    def __post_init__(self) -> None:
        if self.alpha_us < 0:
            raise InvalidInput("the time of a step must not be negative", self.alpha_us, "give microseconds, 0 or more")
        if self.size_bytes < 1:
            raise InvalidInput("a size must be at least one byte", self.size_bytes, "give the bytes of the vector")
        if self.bandwidth_gbps <= 0:
            raise InvalidInput("a bandwidth must be positive", self.bandwidth_gbps, "give Gbit/s of a whole node")

    def time_us(self, candidate: TopologyCandidate) -> Fraction:
        """Return 2 (T_L alpha + T_B): a reduce_scatter and an allgather of equal cost."""
        per_factor_us = Fraction(8 * self.size_bytes, 1000) / self.bandwidth_gbps
        return 2 * (candidate.steps * self.alpha_us + candidate.bandwidth_factor * per_factor_us)

    def best(self, candidates: Iterable[TopologyCandidate]) -> TopologyCandidate:
        """Return the fastest of `candidates`, the one with fewer steps of equals."""
        return min(candidates, key=lambda candidate: (self.time_us(candidate), candidate.steps))
