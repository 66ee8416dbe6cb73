"""What candidates of a campaign are lowered to: the dialect that its runner executes, on its devices."""

from __future__ import annotations

from dataclasses import dataclass

from synth.lowering.limits import Limits
from synth.lowering.lower import limits_of
from synth.lowering.options import LoweringOptions
from synth.lowering.program import Program
from tuner.campaigns.records import Candidate
from tuner.campaigns.runner_section import RunnerSection


@dataclass(frozen=True, slots=True)
class Dialect:
    """A target of `synth.lowering.targets`; `sm_count` and `in_place` as in `LoweringOptions`."""

    target: str
    sm_count: int | None = None
    in_place: bool = True

    @property
    def limits(self) -> Limits:
        """What programs must not exceed."""
        return limits_of(LoweringOptions(self.target, sm_count=self.sm_count))

    def options(self, candidate: Candidate) -> LoweringOptions:
        """Return how to lower `candidate`. InvalidInput if a parameter is beyond what any dialect takes."""
        return LoweringOptions(
            self.target,
            candidate.channels,
            candidate.instances,
            candidate.protocol,
            self.in_place,
            sm_count=self.sm_count,
        )

    def has(self, program: Program) -> bool:
        """Whether `program` can be measured beside others of this dialect."""
        return (program.target, program.in_place) == (self.target, self.in_place)


def dialect_for(section: RunnerSection) -> Dialect:
    """Return the dialect of all programs of a campaign with this runner."""
    lowering = section.config.lowering()
    return Dialect(lowering.target, lowering.sm_count, lowering.in_place)
