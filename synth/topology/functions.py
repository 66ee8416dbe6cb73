"""Functions of topology specs: how their arguments are read."""

from __future__ import annotations

import re

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.grammar import FamilyCall, FileCall, FunctionCall, Option
from chorale.synth.topology.registry import Function, PlanOf, TopologyPlan, require
from chorale.synth.topology.transpose import transpose
from chorale.synth.topology.without import LostLink, without

_LINK = re.compile(r"([A-Za-z0-9_.:]+)([->])([A-Za-z0-9_.:]+)")
_WITHOUT = "without(spec;node=K;link=A-B;link=A>B;…)"


def plan_transpose(call: FunctionCall, plan_of: PlanOf) -> TopologyPlan:
    """Every link turned around. Diameter and degree stay; the schedule of a reduce-scatter lives here."""
    way_out = "write transpose(spec)"
    require(len(call.arguments) == 1, "transpose must have exactly one argument", call, way_out)
    inner = inner_plan(call, plan_of, way_out)
    return TopologyPlan(str(call), inner.nodes, inner.links, lambda: transpose(inner.build()))


def plan_without(call: FunctionCall, plan_of: PlanOf) -> TopologyPlan:
    """A degraded fabric: nodes and links are gone, survivors are renumbered in order."""
    inner = inner_plan(call, plan_of, f"write {_WITHOUT}")
    options = call.arguments[1:]
    require(bool(options), "without must be told what to remove", call, f"write {_WITHOUT}")
    nodes: list[str] = []
    links: list[LostLink] = []
    for option in options:
        if not isinstance(option, Option) or option.key not in ("node", "link"):
            raise InvalidInput("without takes node=K and link=A-B", str(option), f"write {_WITHOUT}")
        if option.key == "node":
            nodes.append(option.value)
        else:
            links.append(read_link(option.value))
    return TopologyPlan(str(call), inner.nodes, inner.links, lambda: without(inner.build(), nodes, links, str(call)))


def inner_plan(call: FunctionCall, plan_of: PlanOf, way_out: str) -> TopologyPlan:
    """Return the plan of the topology that a function is applied to, its first argument."""
    first = call.arguments[0]
    if not isinstance(first, (FamilyCall, FileCall, FunctionCall)):
        raise InvalidInput(f"the first argument of {call.name} must be a topology spec", str(first), way_out)
    return plan_of(first)


def read_link(text: str) -> LostLink:
    """Read a link written A-B (both directions) or A>B."""
    match = _LINK.fullmatch(text)
    if match is None:
        raise InvalidInput("a link must be written A-B or A>B with ranks or node ids", text or '""', "write link=0-1")
    return LostLink(match[1], match[3], one_way=match[2] == ">")


TRANSFORM_FUNCTIONS = (
    Function("transpose", "transpose(spec)", "transpose(uniring:1,4)", "every link turned around", plan_transpose),
    Function(
        "without",
        _WITHOUT,
        "without(torus:4x4;node=5;link=0-1)",
        "failed nodes and links taken out; K, A, B are ranks or node ids",
        plan_without,
    ),
)
