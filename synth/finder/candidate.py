"""A topology with a schedule's method, and what the pair costs or is expected to cost."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from chorale.synth.finder.bounds import least_bandwidth_factor

ScheduleMethod = Literal["bfb", "expand"]
"""bfb: breadth-first broadcast on the topology; expand: the base's own schedule, expanded with the topology."""


@dataclass(frozen=True, slots=True)
class Traits:
    """What expansions need to know of a topology.

    simple:            neither parallel links nor self-loops
    self_loops:        some node has a link to itself
    bidirectional:     every link has its reverse
    reverse_symmetric: known to equal its transpose up to names (False: not known)
    """

    simple: bool
    self_loops: bool
    bidirectional: bool
    reverse_symmetric: bool


@dataclass(frozen=True, slots=True)
class TopologyCandidate:
    """Topology `spec` of `nodes` and `degree`, allgather by `method` in `steps` at T_B = `bandwidth_factor` M / B.

    exact:       whether steps and factor are those of a real schedule; else they are predicted by a rule
    least_steps, least_factor: what the real schedule cannot beat, where the prediction may be too high
    expansions:  how many functions of topologies the spec is deep, for taste between equals
    origin:      the bases that it is made of
    """

    spec: str
    method: ScheduleMethod
    nodes: int
    degree: int
    steps: int
    bandwidth_factor: Fraction
    exact: bool
    traits: Traits
    least_steps: int
    least_factor: Fraction
    expansions: int = 0
    origin: tuple[str, ...] = ()

    @property
    def is_bandwidth_optimal(self) -> bool:
        return self.bandwidth_factor == least_bandwidth_factor(self.nodes)

    @property
    def tie_break(self) -> tuple[int, int, str]:
        """Order between candidates of equal cost: fewer expansions, shorter spec."""
        return self.expansions, len(self.spec), self.spec
