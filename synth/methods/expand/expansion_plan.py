"""From a topology spec to the expansions that it consists of, down to its base."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.grammar import FamilyCall, FileCall, FunctionCall, Number, SpecTree


@dataclass(frozen=True, slots=True)
class BaseNetwork:
    """A network that is no expansion, or the transpose of it if `flipped`."""

    spec: str
    transposed: bool


@dataclass(frozen=True, slots=True)
class LineGraph:
    """Line graph of `inner`. If `flipped`, ranked as the transpose of the line graph of its transpose is."""

    inner: ExpansionPlan
    transposed: bool


@dataclass(frozen=True, slots=True)
class DegreeExpansion:
    """`copies` of every node of `inner`."""

    inner: ExpansionPlan
    copies: int


@dataclass(frozen=True, slots=True)
class CartesianPower:
    """Product of `times` copies of `inner`."""

    inner: ExpansionPlan
    times: int


@dataclass(frozen=True, slots=True)
class BidirectionalUnion:
    """Union of `forwards` and `backwards`, which are each other's transpose."""

    forwards: ExpansionPlan
    backwards: ExpansionPlan


ExpansionPlan: TypeAlias = BaseNetwork | LineGraph | DegreeExpansion | CartesianPower | BidirectionalUnion


def expansion_plan(tree: SpecTree, transposed: bool = False) -> ExpansionPlan:
    """Return the plan of the network that `tree` describes, or of its transpose if `flipped`.

    A product of equal factors is a power; one of unequal factors is a base: the paper defines no schedule for it but
    BFB (theorem 13), and neither has anything else an expansion. Raises InvalidInput for a base in a file and for
    arguments that a topology would not take either.
    """
    if isinstance(tree, FileCall):
        rule, way_out = "expand must be given a base by its name", "use bfb, or a base of the database"
        raise InvalidInput(rule, str(tree), way_out)
    if isinstance(tree, FamilyCall) or tree.name not in _FUNCTIONS:
        return BaseNetwork(str(tree), transposed)
    return _FUNCTIONS[tree.name](tree, transposed)


def is_expansion(plan: ExpansionPlan) -> bool:
    """Whether `plan` has anything beyond a base that is neither a product nor known by its own schedule."""
    return not isinstance(plan, BaseNetwork) or plan.spec.startswith("product(")


def _transpose(call: FunctionCall, flipped: bool) -> ExpansionPlan:
    return expansion_plan(_inner(call), not flipped)


def _line(call: FunctionCall, flipped: bool) -> ExpansionPlan:
    plan = expansion_plan(_inner(call), flipped)
    for _ in range(_number(call) if len(call.arguments) > 1 else 1):
        plan = LineGraph(plan, flipped)
    return plan


def _degree(call: FunctionCall, flipped: bool) -> ExpansionPlan:
    return DegreeExpansion(expansion_plan(_inner(call), flipped), _number(call))


def _power(call: FunctionCall, flipped: bool) -> ExpansionPlan:
    return CartesianPower(expansion_plan(_inner(call), flipped), _number(call))


def _product(call: FunctionCall, flipped: bool) -> ExpansionPlan:
    if len(set(map(str, call.arguments))) > 1:
        return BaseNetwork(str(call), flipped)
    return CartesianPower(expansion_plan(_inner(call), flipped), len(call.arguments))


def _bidirectional(call: FunctionCall, _flipped: bool) -> ExpansionPlan:
    return BidirectionalUnion(expansion_plan(_inner(call)), expansion_plan(_inner(call), transposed=True))


_FUNCTIONS = {
    "transpose": _transpose,
    "line": _line,
    "degree": _degree,
    "power": _power,
    "product": _product,
    "bidirectional": _bidirectional,
}


def _inner(call: FunctionCall) -> SpecTree:
    first = call.arguments[0]
    if not isinstance(first, SpecTree):
        raise InvalidInput(f"the first argument of {call.name} must be a topology spec", str(first), "write one")
    return first


def _number(call: FunctionCall) -> int:
    last = call.arguments[-1]
    if not isinstance(last, Number):
        raise InvalidInput(f"the last argument of {call.name} must be a whole number", str(last), "write one")
    return int(last.text)
