"""What candidates of a campaign are lowered to: the dialect that its runner executes, on its devices."""

from __future__ import annotations

from dataclasses import dataclass

from chorale.synth.lowering.lower import limits_of
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.programs.limits import TargetLimits
from chorale.synth.programs.program import Program
from chorale.tuner.campaigns.records import Candidate
from chorale.tuner.campaigns.runner_section import RunnerSection


@dataclass(frozen=True, slots=True)
class LoweringTarget:
    """A target of `chorale.synth.targets.registry`; `sm_count` and `in_place` as in `LoweringOptions`."""

    name: str
    sm_count: int | None = None
    in_place: bool = True

    @property
    def limits(self) -> TargetLimits:
        """What programs must not exceed."""
        return limits_of(LoweringOptions(self.name, sm_count=self.sm_count))

    def options(self, candidate: Candidate) -> LoweringOptions:
        """Return how to lower `candidate`. InvalidInput if a parameter is beyond what any dialect takes."""
        return LoweringOptions(
            self.name,
            candidate.channels,
            candidate.instances,
            candidate.protocol,
            self.in_place,
            sm_count=self.sm_count,
        )

    def accepts(self, program: Program) -> bool:
        """Whether `program` can be measured beside others of this dialect."""
        return (program.target, program.in_place) == (self.name, self.in_place)


def lowering_target(section: RunnerSection) -> LoweringTarget:
    """Return the dialect of all programs of a campaign with this runner."""
    lowering = section.config.lowering()
    return LoweringTarget(lowering.target, lowering.sm_count, lowering.in_place)
