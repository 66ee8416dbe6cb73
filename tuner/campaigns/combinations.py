"""Which parameters matter for a candidate, and combinations that make no sense, known before anything runs."""

from __future__ import annotations

from dataclasses import dataclass

from runners.sizes import divisible_size
from synth.errors import InvalidInput
from synth.lowering.options import LoweringOptions
from synth.lowering.targets import target_named
from synth.methods import METHODS
from synth.topology.topology import Topology
from tuner.campaigns.campaign import Campaign
from tuner.campaigns.records import Candidate
from tuner.campaigns.space import SearchSpace

TARGET = "oneccl-xml"
"""The dialect that the runners on CPUs execute."""

ELEMENT_BYTES = 4
MOST_PADDING = 0.05
"""How much longer than it is a vector may become because it is cut into whole elements."""

RUNNERS_WITH_PROTOCOLS: frozenset[str] = frozenset()
RUNNERS_WITH_BUFFERS = frozenset({"simulated", "recorded"})
"""Runners on which these change anything; on the others they would only repeat a measurement."""

_NEEDED_OPTION = {"k": "k", "depth": "k", "chunks": "chunks"}
"""Parameter -> the option that a method must obey for it to matter: trees stream, so that `depth` is for them."""


@dataclass(frozen=True, slots=True)
class Combinations:
    """What is known about the candidates of one campaign without making them."""

    runner: str
    ranks: int
    sizes_bytes: tuple[int, ...]

    def matters(self, parameter: str, method: str) -> bool:
        """Whether `parameter` changes anything for schedules of `method`."""
        if parameter == "protocol":
            return self.runner in RUNNERS_WITH_PROTOCOLS
        if parameter == "buffer_bytes":
            return self.runner in RUNNERS_WITH_BUFFERS
        needed = _NEEDED_OPTION.get(parameter)
        return needed is None or method not in METHODS or needed in METHODS[method].options

    def reason_not_to_try(self, candidate: Candidate) -> str | None:
        """Return in one line why `candidate` cannot work or is pointless, or None."""
        try:
            LoweringOptions(TARGET, candidate.channels, candidate.instances, candidate.protocol)
        except InvalidInput as error:
            return str(error)
        most = target_named(TARGET).limits.channels
        if candidate.instances > most:
            return f"{candidate.instances} instances need as many channels, and {TARGET} has {most}"
        asked = self.ranks * candidate.chunks if candidate.chunks else candidate.k or 1
        chunks = asked * candidate.instances * candidate.depth  # at least so many: methods may take more
        if all(_padding(size_bytes, chunks) > MOST_PADDING for size_bytes in self.sizes_bytes):
            return f"no size can be cut into {chunks} chunks of whole elements without growing by {MOST_PADDING:.0%}"
        return None


def search_space(campaign: Campaign, topology: Topology) -> SearchSpace:
    """Return the points of `campaign` that make sense on `topology`."""
    known = Combinations(campaign.runner.kind, topology.compute_count, tuple(campaign.sizes))
    return SearchSpace(campaign.search.dimensions(), known)


def _padding(size_bytes: int, chunks: int) -> float:
    return divisible_size(size_bytes, ELEMENT_BYTES, [chunks]) / size_bytes - 1
