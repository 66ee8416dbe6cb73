"""What candidates of a campaign are lowered to: the dialect that its runner executes, on its devices.

Which parameters matter for a candidate, and combinations that make no sense, known before anything runs.
"""

from __future__ import annotations

from dataclasses import dataclass

from chorale.runners.api.config import Capabilities
from chorale.runners.api.units import divisible_size
from chorale.synth.errors import InvalidInput
from chorale.synth.lowering.lower import limits_of
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.methods.catalog import METHODS
from chorale.synth.programs.limits import TargetLimits
from chorale.synth.programs.program import Program
from chorale.synth.topology.topology import Topology
from chorale.tuner.config.campaign import Campaign
from chorale.tuner.config.runner import RunnerSection
from chorale.tuner.search.space import SearchSpace
from chorale.tuner.trials.records import Candidate


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


ELEMENT_BYTES = 4
MAX_PADDING = 0.05
"""How much longer than it is a vector may become because it is cut into whole elements."""

_NEEDED_OPTION = {"k": "k", "depth": "k", "chunks": "chunks"}
"""Parameter -> the option that a method must obey for it to matter: trees stream, so that `depth` is for them."""


@dataclass(frozen=True, slots=True)
class CampaignConstraints:
    """What is known about the candidates of one campaign without making them."""

    runner: Capabilities
    target: LoweringTarget
    ranks: int
    sizes_bytes: tuple[int, ...]

    def matters(self, parameter: str, method: str) -> bool:
        """Whether `parameter` changes anything for schedules of `method`."""
        if parameter == "protocol":
            return self.runner.protocols
        if parameter == "buffer_bytes":
            return self.runner.buffers
        needed = _NEEDED_OPTION.get(parameter)
        return needed is None or method not in METHODS or needed in METHODS[method].options

    def reason_not_to_try(self, candidate: Candidate) -> str | None:
        """Return in one line why `candidate` cannot work or is pointless, or None."""
        try:
            self.target.options(candidate)
        except InvalidInput as error:
            return str(error)
        asked = self.ranks * candidate.chunks if candidate.chunks else candidate.k or 1
        chunks = asked * candidate.instances * candidate.depth  # at least so many: methods may take more
        if (excess := self._excess(candidate, chunks)) is not None:
            return f"{self.target.name} {excess}"
        if all(_padding(size_bytes, chunks) > MAX_PADDING for size_bytes in self.sizes_bytes):
            return f"no size can be cut into {chunks} chunks of whole elements without growing by {MAX_PADDING:.0%}"
        return None

    def _excess(self, candidate: Candidate, chunks: int) -> str | None:
        """Return which limit of the dialect any program of `candidate` exceeds, None if that is not known yet."""
        limits = self.target.limits
        if self.ranks > limits.ranks:
            return f"has programs of at most {limits.ranks} ranks, not {self.ranks}"
        if candidate.instances > limits.channels:
            return f"has {limits.channels} channels, and {candidate.instances} instances need as many"
        if chunks - 1 > limits.offset:
            return f"has {limits.offset + 1} chunks, and this needs at least {chunks}"
        largest = max(self.sizes_bytes)
        if limits.largest_max_bytes is not None and largest > limits.largest_max_bytes:
            return f"serves at most {limits.largest_max_bytes} bytes, not {largest}"
        return None


def search_space(campaign: Campaign, topology: Topology) -> SearchSpace:
    """Return the points of `campaign` that make sense on `topology`."""
    section = campaign.runner
    known = CampaignConstraints(
        section.capabilities, lowering_target(section), topology.compute_count, tuple(campaign.sizes)
    )
    return SearchSpace(campaign.search.dimensions(), known)


def _padding(size_bytes: int, chunks: int) -> float:
    return divisible_size(size_bytes, ELEMENT_BYTES, [chunks]) / size_bytes - 1
