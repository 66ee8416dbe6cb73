"""Networks as what they are expanded from, one expansion at a time, with sizes that are known without building them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Literal

from chorale.synth.topology.grammar import FunctionCall, Number, SpecTree, parse_spec
from chorale.synth.topology.spec import plan_topology

Kind = Literal["base", "line", "degree", "product"]


@dataclass(frozen=True, slots=True)
class Expansion:
    """A regular network: the line graph or degree expansion of another one, the product of several, or a base.

    parts:  what it is made of; none for a base
    copies: of each node, for a degree expansion
    """

    kind: Kind
    spec: str
    nodes: int
    degree: int
    parts: tuple[Expansion, ...] = ()
    copies: int = 1


@lru_cache(maxsize=4096)
def expansion_of(spec: str) -> Expansion:
    """Return how the network `spec` is expanded from others; what is no expansion is a base. Nothing is built."""
    tree = parse_spec(spec)
    if not isinstance(tree, FunctionCall):
        return _base(spec)
    if tree.name == "line":
        inner, times = _inner(tree)
        part = expansion_of(
            str(inner) if times == 1 else f"line({inner};{times - 1})" if times > 2 else f"line({inner})"
        )
        return Expansion("line", spec, part.nodes * part.degree, part.degree, (part,))
    if tree.name == "degree":
        inner, copies = _inner(tree)
        part = expansion_of(str(inner))
        return Expansion("degree", spec, part.nodes * copies, part.degree * copies, (part,), copies)
    if tree.name == "power":
        inner, times = _inner(tree)
        return _product(spec, (expansion_of(str(inner)),) * times)
    if tree.name == "product":
        return _product(spec, tuple(expansion_of(str(part)) for part in tree.arguments))
    return _base(spec)


def _base(spec: str) -> Expansion:
    plan = plan_topology(spec)
    return Expansion("base", spec, plan.nodes, plan.links // plan.nodes)


def _product(spec: str, parts: tuple[Expansion, ...]) -> Expansion:
    return Expansion("product", spec, prod(part.nodes for part in parts), sum(part.degree for part in parts), parts)


def _inner(tree: FunctionCall) -> tuple[SpecTree, int]:
    """Return the first network of an expansion, and the number that follows it, 1 if it is missing."""
    inner = tree.arguments[0]
    number = tree.arguments[1] if len(tree.arguments) > 1 else None
    assert isinstance(inner, SpecTree)
    return inner, int(number.text) if isinstance(number, Number) else 1
