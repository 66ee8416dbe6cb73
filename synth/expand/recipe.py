"""From a topology spec to the expansions that it is made of, down to its base."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from synth.errors import InvalidInput
from synth.topology.grammar import FamilyCall, FileCall, FunctionCall, Number, SpecTree


@dataclass(frozen=True, slots=True)
class Base:
    """A network that is no expansion, or the transpose of it if `flipped`."""

    spec: str
    flipped: bool


@dataclass(frozen=True, slots=True)
class Line:
    """Line graph of `inner`. If `flipped`, ranked as the transpose of the line graph of its transpose is."""

    inner: Recipe
    flipped: bool


@dataclass(frozen=True, slots=True)
class Degree:
    """`copies` of every node of `inner`."""

    inner: Recipe
    copies: int


@dataclass(frozen=True, slots=True)
class Power:
    """Product of `times` copies of `inner`."""

    inner: Recipe
    times: int


@dataclass(frozen=True, slots=True)
class Bidirectional:
    """Union of `forwards` and `backwards`, which are each other's transpose."""

    forwards: Recipe
    backwards: Recipe


Recipe: TypeAlias = Base | Line | Degree | Power | Bidirectional


def recipe_of(tree: SpecTree, flipped: bool = False) -> Recipe:
    """Return the recipe of the network that `tree` describes, or of its transpose if `flipped`.

    A product of equal factors is a power; one of unequal factors is a base: the paper defines no schedule for it but
    BFB (theorem 13), and neither has anything else an expansion. Raises InvalidInput for a base in a file and for
    arguments that a topology would not take either.
    """
    if isinstance(tree, FileCall):
        rule, way_out = "expand must be given a base by its name", "use bfb, or a base of the database"
        raise InvalidInput(rule, str(tree), way_out)
    if isinstance(tree, FamilyCall) or tree.name not in _FUNCTIONS:
        return Base(str(tree), flipped)
    return _FUNCTIONS[tree.name](tree, flipped)


def is_expansion(recipe: Recipe) -> bool:
    """Whether `recipe` has anything beyond a base that is neither a product nor known by its own schedule."""
    return not isinstance(recipe, Base) or recipe.spec.startswith("product(")


def _transpose(call: FunctionCall, flipped: bool) -> Recipe:
    return recipe_of(_inner(call), not flipped)


def _line(call: FunctionCall, flipped: bool) -> Recipe:
    recipe = recipe_of(_inner(call), flipped)
    for _ in range(_number(call) if len(call.arguments) > 1 else 1):
        recipe = Line(recipe, flipped)
    return recipe


def _degree(call: FunctionCall, flipped: bool) -> Recipe:
    return Degree(recipe_of(_inner(call), flipped), _number(call))


def _power(call: FunctionCall, flipped: bool) -> Recipe:
    return Power(recipe_of(_inner(call), flipped), _number(call))


def _product(call: FunctionCall, flipped: bool) -> Recipe:
    if len(set(map(str, call.arguments))) > 1:
        return Base(str(call), flipped)
    return Power(recipe_of(_inner(call), flipped), len(call.arguments))


def _bidirectional(call: FunctionCall, _flipped: bool) -> Recipe:
    return Bidirectional(recipe_of(_inner(call)), recipe_of(_inner(call), flipped=True))


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
