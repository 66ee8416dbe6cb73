"""Declarations of topology families and functions, and plans: topologies whose size is known before they are built."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.grammar import FamilyCall, FunctionCall, SpecTree
from chorale.synth.topology.topology import MAX_LINKS, MAX_NODES, Topology

_MAX_DIGITS = 18


class TooLarge(InvalidInput):
    """Raised for a network above the size limits. `nodes` and `links` are the counts that it would have."""

    def __init__(self, spec: str, nodes: int, links: int) -> None:
        most = f"{MAX_NODES} nodes" if nodes > MAX_NODES else f"{MAX_LINKS} links"
        super().__init__(f"a topology must have at most {most}", spec, "choose a smaller network")
        self.nodes = nodes
        self.links = links

    def __reduce__(self) -> tuple[Any, ...]:
        return TooLarge, (str(self.value), self.nodes, self.links)


@dataclass(frozen=True, slots=True)
class TopologyPlan:
    """An unbuilt topology. `nodes` (including switches) and `links` are exact counts or upper bounds."""

    spec: str
    nodes: int
    links: int
    build: Callable[[], Topology]

    def __post_init__(self) -> None:
        require_size(self.spec, self.nodes, self.links)


@dataclass(frozen=True, slots=True)
class SpecForm:
    """A family or function of specs as `chorale topology list` prints it: name, syntax, example and summary."""

    name: str
    syntax: str
    example: str
    summary: str


@dataclass(frozen=True, slots=True)
class Family(SpecForm):
    """A family of topologies with specs `name:arguments`. `plan` returns the plan for such a spec."""

    plan: Callable[[FamilyCall], TopologyPlan]


PlanOf = Callable[[SpecTree], TopologyPlan]
"""Returns the plan for the inner spec of a function."""


@dataclass(frozen=True, slots=True)
class Function(SpecForm):
    """A function `name(arguments)` that transforms topologies. `plan` returns the plan for such a spec."""

    plan: Callable[[FunctionCall, PlanOf], TopologyPlan]


def require_size(spec: str, nodes: int, links: int) -> None:
    """Raise TooLarge if a network with these counts would exceed the size limits."""
    if nodes > MAX_NODES or links > MAX_LINKS:
        raise TooLarge(spec, nodes, links)


def whole_numbers(call: FamilyCall, syntax: str, separator: str = ",", text: str | None = None) -> list[int]:
    """Return the arguments of `call` (or those in `text`) as ints. `syntax` shows users how to write the arguments.

    Raises InvalidInput for anything but whole numbers of at most 18 digits.
    """
    pieces = (call.text if text is None else text).split(separator)
    way_out = f"write {syntax}"
    if not all(re.fullmatch("[0-9]+", piece) for piece in pieces):
        if not call.text:
            raise InvalidInput(f"{call.name} needs arguments", "", way_out)
        raise InvalidInput(f"the arguments of {call.name} must be whole numbers", str(call), way_out)
    if max(map(len, pieces)) > _MAX_DIGITS:
        raise InvalidInput(f"a number must have at most {_MAX_DIGITS} digits", str(call), way_out)
    return [int(piece) for piece in pieces]


def fixed_numbers(call: FamilyCall, syntax: str, count: int) -> list[int]:
    """Return the arguments of `call`, which must be exactly `count` whole numbers."""
    numbers = whole_numbers(call, syntax)
    if len(numbers) != count:
        plural = "one whole number" if count == 1 else f"{count} whole numbers"
        raise InvalidInput(f"{call.name} must have {plural}", str(call), f"write {syntax}")
    return numbers


def require(holds: bool, rule: str, call: FamilyCall | FunctionCall, way_out: str) -> None:
    """Raise InvalidInput with `rule` and the hint `way_out` unless `holds` is true."""
    if not holds:
        raise InvalidInput(rule, str(call), way_out)
