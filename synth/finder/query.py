"""Queries to the finder, and which of them have no answer."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from chorale.synth.errors import InvalidInput
from chorale.synth.finder.base_candidates import BASE_SETS, BaseSet
from chorale.synth.finder.candidate import least_bandwidth_factor, least_steps
from chorale.synth.names import unknown_name

MAX_NODES = 2**14
MAX_LINKS = 2**20


@dataclass(frozen=True, slots=True)
class FinderQuery:
    """Topologies of `nodes` nodes, each with `degree` links out and in.

    bidirectional: whether every link must have its reverse
    bases: "all", or "paper" for the bases of the paper only
    Raises InvalidInput for a question without an answer, or one that is too large.
    """

    nodes: int
    degree: int
    bidirectional: bool = False
    bases: BaseSet = "all"

    def __post_init__(self) -> None:
        if self.bases not in BASE_SETS:
            raise unknown_name("set of bases", self.bases, BASE_SETS)
        _require(2 <= self.nodes <= MAX_NODES, f"the number of nodes must lie between 2 and {MAX_NODES}", self.nodes)
        _require(self.degree >= 1, "the degree must be at least 1", self.degree)
        if self.degree >= self.nodes:
            rule = "the degree must be below the number of nodes"
            way_out = f"{self.nodes - 1} links reach all others from a node; ask for at most that degree"
            raise InvalidInput(rule, f"degree {self.degree} for {self.nodes} nodes", way_out)
        links = self.nodes * self.degree
        _require(links <= MAX_LINKS, f"nodes times degree must be at most {MAX_LINKS} links", links)
        if self.bidirectional:
            self._require_two_way()

    def _require_two_way(self) -> None:
        if self.nodes * self.degree % 2:
            rule = "a bidirectional network must have an even number of nodes times degree"
            raise InvalidInput(rule, f"{self.nodes} nodes of degree {self.degree}", "change one of them by 1")
        if self.degree == 1 and self.nodes > 2:
            rule = "a connected bidirectional network of degree 1 must have 2 nodes"
            raise InvalidInput(rule, f"{self.nodes} nodes", "ask for degree 2 or more")

    @property
    def least_steps(self) -> int:
        """The Moore bound."""
        return least_steps(self.nodes, self.degree, self.bidirectional)

    @property
    def least_bandwidth_factor(self) -> Fraction:
        """(N - 1) / N."""
        return least_bandwidth_factor(self.nodes)


def _require(holds: bool, rule: str, value: object) -> None:
    if not holds:
        raise InvalidInput(rule, value, "choose another number")
