"""Defines a campaign's search space: the parameter combinations that are useful for its runner, network and sizes."""

import math
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, Protocol

from chorale.runners.api.config import Capabilities, RunnerConfig
from chorale.runners.api.units import divisible_size
from chorale.runners.nccl.parameters import is_library_method
from chorale.synth.collective import CollectiveName, parse_collective
from chorale.synth.errors import InvalidInput
from chorale.synth.lowering.lower import limits_of
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.methods.catalog import IN_NETWORK, METHODS
from chorale.synth.programs.check_structure import TargetLimits
from chorale.synth.programs.library_call import LibraryCall
from chorale.synth.programs.program import AnyProgram
from chorale.synth.topology.boxes import boxes_of
from chorale.synth.topology.topology import Topology
from chorale.tuner.config.campaign import Campaign
from chorale.tuner.config.values import RunnerSection, Value, is_adopted
from chorale.tuner.trials.records import LIBRARY_PARAMETERS, PLAN_PARAMETERS, Candidate

MAX_POINTS = 10**5
ELEMENT_BYTES = 4
MAX_PADDING = 0.05
"""Maximum growth, as a fraction, of a vector whose chunks are rounded up to whole elements."""
_NEEDED_OPTION = {"k": "k", "depth": "k", "chunks": "chunks"}
"""Parameter -> option without which a method ignores the parameter. `depth` pipelines trees, so it needs `k`."""


class Constraints(Protocol):
    """Decides which candidates are rejected before they are built, and which parameters matter."""

    def matters(self, parameter: str, method: str) -> bool:
        """Return whether `parameter` changes anything for schedules of `method`."""
        ...

    def reason_not_to_try(self, candidate: Candidate) -> str | None:
        """Return a one-line reason not to try `candidate`, or None if it should be tried."""
        ...


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """The points that a search may try: all valid combinations of the dimensions' values, without duplicates.

    `dimensions` maps fields of `Candidate` to their values, in order of preference: the search starts with the first
    value of each field. The first field is `method`. A parameter that does not matter for a method keeps its default
    value for that method, so that no two points differ only in a parameter without effect.

    points:  all points in grid order; the last dimension varies fastest
    refused: reason for leaving out points -> number of points left out for this reason
    """

    dimensions: Mapping[str, tuple[Value, ...]]
    constraints: Constraints
    points: tuple[Candidate, ...] = field(init=False)
    refused: Mapping[str, int] = field(init=False)
    _members: frozenset[Candidate] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        grid = math.prod(len(values) for values in self.dimensions.values())
        if grid > MAX_POINTS:
            rule = f"a search space must have at most {MAX_POINTS} points"
            raise InvalidInput(rule, f"{grid} points", "give fewer values under `search`")
        distinct = dict.fromkeys(self._candidates())
        reasons = {point: self.constraints.reason_not_to_try(point) for point in distinct}
        points = tuple(point for point, reason in reasons.items() if reason is None)
        object.__setattr__(self, "points", points)
        object.__setattr__(self, "_members", frozenset(points))
        object.__setattr__(self, "refused", Counter(reason for reason in reasons.values() if reason is not None))

    def __len__(self) -> int:
        return len(self.points)

    def __contains__(self, candidate: Candidate) -> bool:
        return candidate in self._members

    def matters(self, parameter: str, method: str) -> bool:
        """Return whether `parameter` has an effect for `method`, so that its values are tried."""
        return parameter == "method" or self.constraints.matters(parameter, method)

    def starts(self) -> list[Candidate]:
        return list({point.method: point for point in reversed(self.points)}.values())[::-1]

    def shuffled(self, seed: int) -> Iterator[Candidate]:
        """Yield every point once, in a random order that `seed` determines."""
        points = list(self.points)
        random.Random(seed).shuffle(points)  # noqa: S311 - an order of trials, not a secret
        return iter(points)

    def _candidates(self) -> Iterator[Candidate]:
        for method in self.dimensions["method"]:
            names = [name for name in self.dimensions if name != "method" and self.matters(name, str(method))]
            for values in product(*(self.dimensions[name] for name in names)):
                chosen: dict[str, Any] = dict(zip(names, values, strict=True))
                yield Candidate(str(method), **chosen)


def lowered_as(lowering: LoweringOptions, candidate: Candidate) -> LoweringOptions:
    """Return the lowering options of `candidate`. Raises InvalidInput if no target accepts a parameter's value."""
    return replace(
        lowering,
        channels=candidate.channels,
        instances=candidate.instances,
        protocol=candidate.protocol,
        reads=candidate.reads,
        block_group=candidate.block_group,
        pipeline_bytes=candidate.pipeline_bytes,
        vector_bytes=candidate.vector_bytes,
        threads=None if is_library_method(candidate.method) else candidate.threads,
    )


def is_native(section: RunnerSection, program: AnyProgram) -> bool:
    """Return whether `program` has the target and placement (in or out of place) of the runner's own programs."""
    lowering = section.config.lowering()
    return (program.target, program.in_place) == (lowering.target, lowering.in_place)


def can_execute(section: RunnerSection, program: AnyProgram) -> bool:
    """Return whether the runner can execute `program` unchanged, in one run with programs of the runner's target."""
    if is_native(section, program):
        return True
    if isinstance(program, LibraryCall):
        return section.capabilities.library_settings
    return section.config.executes_plans if program.one_sided else section.capabilities.any_program


@dataclass(frozen=True, slots=True)
class CampaignConstraints:
    """Implements `Constraints` for a campaign: rejects candidates that its runner, network or sizes rule out."""

    config: RunnerConfig
    ranks: int
    boxes: int
    sizes_bytes: tuple[int, ...]
    collective: CollectiveName

    @property
    def runner(self) -> Capabilities:
        return self.config.capabilities

    @property
    def limits(self) -> TargetLimits:
        return limits_of(self.config.lowering())

    @property
    def is_one_sided(self) -> bool:
        """Return whether the runner executes plans, which consist of puts, reads and signals."""
        return self.limits.one_sided_operations is not None

    def matters(self, parameter: str, method: str) -> bool:
        """Return whether `parameter` changes anything for schedules of `method`; False for a program from a file."""
        if is_adopted(method):
            return False
        if is_library_method(method):
            return parameter in (*LIBRARY_PARAMETERS, "protocol", "buffer_bytes")
        if parameter in LIBRARY_PARAMETERS:
            return parameter == "threads" and self.is_one_sided
        if parameter in PLAN_PARAMETERS:
            return self.is_one_sided
        if parameter == "protocol":
            return self.runner.protocols or self.is_one_sided
        if parameter == "buffer_bytes":
            return self.runner.buffers
        needed = _NEEDED_OPTION.get(parameter)
        return needed is None or method not in METHODS or needed in METHODS[method].options

    def reason_not_to_try(self, candidate: Candidate) -> str | None:
        """Return a one-line reason why `candidate` cannot work or is pointless, or None if it should be tried."""
        if is_adopted(candidate.method):
            return None
        if (settings := candidate.settings) is not None:
            return self.config.settings_fault(self.collective, settings, self.boxes)
        if candidate.method == IN_NETWORK and not self.runner.switches:
            return f"{IN_NETWORK} needs a runner that emulates switches that add, such as local"
        try:
            lowered_as(self.config.lowering(), candidate)
        except InvalidInput as error:
            return str(error)
        if candidate.protocol == "LL" and candidate.vector_bytes != Candidate(candidate.method).vector_bytes:
            return "vector_bytes changes nothing in packets, which have 8 bytes of data"
        per_instance = self.ranks * candidate.chunks if candidate.chunks else candidate.k or 1
        chunks = per_instance * candidate.instances * candidate.depth  # a lower limit: methods may use more chunks
        if (excess := self._excess(candidate, chunks)) is not None:
            return f"{self.config.lowering().target} {excess}"
        if all(
            (divisible_size(size_bytes, ELEMENT_BYTES, [chunks]) / size_bytes - 1) > MAX_PADDING
            for size_bytes in self.sizes_bytes
        ):
            return f"no size can be cut into {chunks} chunks of whole elements without growing by {MAX_PADDING:.0%}"
        return None

    def _excess(self, candidate: Candidate, chunks: int) -> str | None:
        """Return which limit of the target `candidate` certainly exceeds, or None if it may be within all limits."""
        limits = self.limits
        if self.ranks > limits.ranks:
            return f"has programs of at most {limits.ranks} ranks, not {self.ranks}"
        if candidate.instances > limits.channels:
            return f"has {limits.channels} channels, and {candidate.instances} instances need as many"
        if chunks - 1 > limits.offset:
            return f"has {limits.offset + 1} chunks, and this needs at least {chunks}"
        largest = max(self.sizes_bytes)
        if limits.largest_max_bytes is not None and largest > limits.largest_max_bytes:
            return f"supports at most {limits.largest_max_bytes} bytes, not {largest}"
        return None


def search_space(campaign: Campaign, topology: Topology) -> SearchSpace:
    """Return the search space of `campaign`: the parameter combinations that are useful on `topology`."""
    section = campaign.runner
    constraints = CampaignConstraints(
        section.config,
        topology.compute_count,
        max(boxes_of(topology)) + 1 if topology.switch_count else 1,
        tuple(campaign.sizes),
        parse_collective(campaign.collective).name,
    )
    return SearchSpace(campaign.search.dimensions(), constraints)
