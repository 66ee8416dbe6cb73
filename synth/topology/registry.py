"""Declarations of topology families and functions, and plans that know their size before they are built."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.grammar import FamilyCall, FunctionCall, SpecTree
from chorale.synth.topology.topology import MAX_LINKS, MAX_NODES, Topology

_MAX_DIGITS = 18


class TooLarge(InvalidInput):
    """Raised for a network above the size limits; `nodes` and `links` are the size that it would have."""

    def __init__(self, spec: str, nodes: int, links: int) -> None:
        most = f"{MAX_NODES} nodes" if nodes > MAX_NODES else f"{MAX_LINKS} links"
        super().__init__(f"a topology must have at most {most}", spec, "choose a smaller network")
        self.nodes = nodes
        self.links = links

    def __reduce__(self) -> tuple[Any, ...]:
        return TooLarge, (str(self.value), self.nodes, self.links)


@dataclass(frozen=True, slots=True)
class TopologyPlan:
    """A topology that is not built yet. `nodes` (including switches) and `links` are exact or upper bounds."""

    spec: str
    nodes: int
    links: int
    build: Callable[[], Topology]

    def __post_init__(self) -> None:
        require_size(self.spec, self.nodes, self.links)


@dataclass(frozen=True, slots=True)
class SpecForm:
    """What `chorale topology list` prints about a form of spec."""

    name: str
    syntax: str
    example: str
    summary: str


@dataclass(frozen=True, slots=True)
class Family(SpecForm):
    """A family `name:arguments`; `plan` reads the arguments."""

    plan: Callable[[FamilyCall], TopologyPlan]


PlanOf = Callable[[SpecTree], TopologyPlan]
"""Plans the inner specs of a function."""


@dataclass(frozen=True, slots=True)
class Function(SpecForm):
    """A function `name(arguments)` of other topologies; `plan` reads its arguments."""

    plan: Callable[[FunctionCall, PlanOf], TopologyPlan]


def require_size(spec: str, nodes: int, links: int) -> None:
    """Raise TooLarge for a network above the size limits, before it is built."""
    if nodes > MAX_NODES or links > MAX_LINKS:
        raise TooLarge(spec, nodes, links)


def whole_numbers(call: FamilyCall, syntax: str, separator: str = ",", text: str | None = None) -> list[int]:
    """Return the arguments of `call` (or the part `text` of them) as ints; `syntax` shows users how to write them.

    Raises InvalidInput for anything but whole numbers of at most 18 digits.
    """
    pieces = (call.text if text is None else text).split(separator)
    way_out = f"write {syntax}"
    if not all(re.fullmatch("[0-9]+", piece) for piece in pieces):
        raise InvalidInput(f"the arguments of {call.name} must be whole numbers", str(call), way_out)
    if max(map(len, pieces)) > _MAX_DIGITS:
        raise InvalidInput(f"a number must have at most {_MAX_DIGITS} digits", str(call), way_out)
    return [int(piece) for piece in pieces]


def fixed_numbers(call: FamilyCall, syntax: str, count: int) -> list[int]:
    """Return the arguments of `call`, which must be `count` whole numbers."""
    numbers = whole_numbers(call, syntax)
    if len(numbers) != count:
        plural = "one whole number" if count == 1 else f"{count} whole numbers"
        raise InvalidInput(f"{call.name} must have {plural}", str(call), f"write {syntax}")
    return numbers


def require(holds: bool, rule: str, call: FamilyCall | FunctionCall, way_out: str) -> None:
    """Raise InvalidInput unless `holds`."""
    if not holds:
        raise InvalidInput(rule, str(call), way_out)
