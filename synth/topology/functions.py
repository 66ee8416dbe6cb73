"""Plans calls of functions in topology specs, such as product: reads arguments and checks the size of the result."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np

from chorale.synth.errors import InvalidInput
from chorale.synth.identity import parse_rational
from chorale.synth.topology.check import read_ability
from chorale.synth.topology.expansions import (
    bidirectional,
    cartesian_product,
    degree_expansion,
    line_graph,
    process_network,
)
from chorale.synth.topology.failures import LostLink, scaled, without
from chorale.synth.topology.registry import (
    FamilyCall,
    FileCall,
    Function,
    FunctionCall,
    Number,
    Option,
    PlanOf,
    TopologyPlan,
    require,
    require_size,
)
from chorale.synth.topology.topology import MAX_LINKS, MAX_NODES, SwitchAbility, Topology, is_automorphism, transpose

_LINK = re.compile(r"([A-Za-z0-9_.:]+)([->])([A-Za-z0-9_.:]+)")
_MAX_TIMES = MAX_NODES.bit_length() - 1
_MAX_COUNTED = 2**14
_WITHOUT = "without(spec;node=K;link=A-B;link=A>B;part=p/q;…)"
_SCALED = "scaled(spec;link=A-B;link=A>B;…;factor=p/q;…)"
_ABLE = "able(spec;switch=S;…;multicast=yes|no;reduce=yes|no;reduce-bandwidth=R)"


def _of_one_topology(change: Callable[[Topology], Topology], links: int = 1) -> Callable[..., TopologyPlan]:
    """Return a planner for a function of one topology that multiplies the number of links by `links`."""

    def plan(call: FunctionCall, plan_of: PlanOf) -> TopologyPlan:
        way_out = f"write {call.name}(spec)"
        require(len(call.arguments) == 1, f"{call.name} must have exactly one argument", call, way_out)
        inner = _inner_plan(call, plan_of, way_out)
        return TopologyPlan(str(call), inner.nodes, links * inner.links, lambda: change(inner.build()))

    plan.__doc__ = change.__doc__
    return plan


def plan_line(call: FunctionCall, plan_of: PlanOf) -> TopologyPlan:
    """Plan the n-fold line graph of a topology."""
    times = 1 if len(call.arguments) == 1 else _times(call, "line(spec) or line(spec;n)", "a spec and at most one")
    spec, plan = str(call), _inner_plan(call, plan_of, "write line(spec) or line(spec;n)")
    nodes, links = plan.nodes, plan.links
    for _ in range(times):  # equal degrees give the fewest links, so this rejects large networks early
        nodes, links = links, links * links // nodes
        require_size(spec, nodes, links)
    for _ in range(times):
        plan = _line_of(plan, spec)
    return plan


def _line_of(plan: TopologyPlan, spec: str) -> TopologyPlan:
    """Plan one line graph: a node for each link, a link for each walk along two links.

    If there are at most `_MAX_COUNTED` links, the network is built to count the walks. Otherwise, degrees are assumed
    to be equal, which gives the fewest walks; `line_graph` checks the exact size.
    """
    links = plan.links * plan.links // plan.nodes
    if plan.links > _MAX_COUNTED or links > MAX_LINKS:
        return TopologyPlan(spec, plan.links, links, lambda: line_graph(plan.build(), spec))
    inner = plan.build()
    ends = (np.bincount(column, minlength=inner.node_count) for column in (inner.links.dst, inner.links.src))
    return TopologyPlan(spec, plan.links, int(np.dot(*ends)), lambda: line_graph(inner, spec))


def plan_degree(call: FunctionCall, plan_of: PlanOf) -> TopologyPlan:
    """Plan the degree expansion of a topology: n copies of every node."""
    copies = _times(call, "degree(spec;n)", largest=MAX_NODES)
    inner, spec = _inner_plan(call, plan_of, "write degree(spec;n)"), str(call)
    links = inner.links * copies**2
    return TopologyPlan(spec, inner.nodes * copies, links, lambda: degree_expansion(inner.build(), copies, spec))


def plan_power(call: FunctionCall, plan_of: PlanOf) -> TopologyPlan:
    """Plan the Cartesian product of n copies of a topology."""
    times = _times(call, "power(spec;n)")
    return _plan_product(str(call), [_inner_plan(call, plan_of, "write power(spec;n)")] * times, "power")


def plan_product(call: FunctionCall, plan_of: PlanOf) -> TopologyPlan:
    """Plan the Cartesian product of several topologies."""
    way_out = "write product(spec;spec;…)"
    require(len(call.arguments) >= 2, "product must have at least two arguments", call, way_out)
    inner: list[TopologyPlan] = []
    for argument in call.arguments:
        if not isinstance(argument, (FamilyCall, FileCall, FunctionCall)):
            raise InvalidInput("{} is not a topology spec, product takes only specs", str(argument), way_out)
        inner.append(plan_of(argument))
    return _plan_product(str(call), inner, "product")


def _plan_product(spec: str, factors: Sequence[TopologyPlan], function: str) -> TopologyPlan:
    nodes = math.prod(plan.nodes for plan in factors)
    links = sum(plan.links * nodes // plan.nodes for plan in factors)

    def build() -> Topology:
        built = {id(plan): plan.build() for plan in {id(plan): plan for plan in factors}.values()}
        return cartesian_product([built[id(plan)] for plan in factors], spec, function)

    return TopologyPlan(spec, nodes, links, build)


def plan_without(call: FunctionCall, plan_of: PlanOf) -> TopologyPlan:
    """Remove failed nodes and links; the surviving nodes are renumbered in order.

    `part` after a link removes only that fraction of the link, such as `part=1/18` for one of a GPU's 18 NVLinks.
    """
    way_out = f"write {_WITHOUT}"
    inner = _inner_plan(call, plan_of, way_out)
    options = call.arguments[1:]
    require(bool(options), "without needs something to remove", call, way_out)
    nodes: list[str] = []
    links: list[LostLink] = []
    partial: list[tuple[LostLink, Fraction]] = []
    may_be_partial = False
    for option in options:
        if not isinstance(option, Option) or option.key not in ("node", "link", "part"):
            raise InvalidInput("unknown option of without: {}", str(option), way_out)
        if option.key == "node":
            nodes.append(option.value)
        elif option.key == "link":
            links.append(_read_link(option.value))
        else:
            require(may_be_partial, "part must follow its link", call, way_out)
            part = parse_rational(option.value, "the part of without")
            require(0 < part < 1, "the lost part of a link must lie between 0 and 1", call, "write part=1/18")
            partial.append((links.pop(), part))
        may_be_partial = option.key == "link"

    def build() -> Topology:
        topology = inner.build()
        for link, part in partial:
            topology = scaled(topology, [link], 1 - part, str(call))
        return without(topology, nodes, links, str(call)) if nodes or links else topology

    return TopologyPlan(str(call), inner.nodes, inner.links, build)


def plan_scaled(call: FunctionCall, plan_of: PlanOf) -> TopologyPlan:
    """Multiply the bandwidth of some links by a positive factor.

    A factor applies to the links listed since the previous factor. If there is only one factor, it may be anywhere and
    applies to all listed links. If a link is listed for two factors, its bandwidth is multiplied by both.
    """
    way_out = f"write {_SCALED}"
    inner = _inner_plan(call, plan_of, way_out)
    options: list[object] = list(call.arguments[1:])
    is_factor = [isinstance(option, Option) and option.key == "factor" for option in options]
    if sum(is_factor) == 1:
        options.append(options.pop(is_factor.index(True)))
    groups: list[tuple[list[LostLink], Fraction]] = []
    links: list[LostLink] = []
    for option in options:
        if not isinstance(option, Option) or option.key not in ("link", "factor"):
            raise InvalidInput("unknown option of scaled: {}", str(option), way_out)
        if option.key == "link":
            links.append(_read_link(option.value))
            continue
        require(bool(links), "scaled needs links before each factor", call, way_out)
        factor = parse_rational(option.value, "the factor of scaled")
        require(factor > 0, "the factor of scaled must be positive", call, "use without(…) to take links out")
        groups.append((links, factor))
        links = []
    require(not links or bool(groups), "scaled must have a factor", call, way_out)
    require(not links, "every link of scaled must have a factor after it", call, way_out)
    require(bool(groups), "scaled needs links", call, way_out)

    def build() -> Topology:
        topology = inner.build()
        for links, factor in groups:
            topology = scaled(topology, links, factor, str(call))
        return topology

    return TopologyPlan(str(call), inner.nodes, inner.links, build)


def plan_able(call: FunctionCall, plan_of: PlanOf) -> TopologyPlan:
    """Let switches multicast and reduce data, as in InfiniBand fabrics with SHARP: `able(fattree:4)`.

    `switch=S` selects switches: S is a switch id, or the part of ids before the colon. By default, all switches are
    selected. The selected switches get both abilities unless the options say otherwise; with `multicast=no;reduce=no`,
    the switches only forward. `reduce-bandwidth` limits a switch's output of sums, in the network's bandwidth unit. The
    new abilities replace earlier abilities of these switches; symmetries that do not preserve the abilities are
    dropped.
    """
    keys, way_out = ("switch", "multicast", "reduce", "reduce-bandwidth"), f"write {_ABLE}"
    inner = _inner_plan(call, plan_of, way_out)
    options: dict[str, list[str]] = {}
    for option in call.arguments[1:]:
        if not isinstance(option, Option) or option.key not in keys:
            raise InvalidInput(f"able takes {', '.join(keys)}", str(option), way_out)
        if option.key in options and option.key != "switch":
            raise InvalidInput(f"able takes one {option.key}", str(option), way_out)
        options.setdefault(option.key, []).append(option.value)
    attributes: dict[str, object] = {}
    for key in ("multicast", "reduce"):
        text = options.get(key, ["yes"])[0]
        if text not in ("yes", "no"):
            raise InvalidInput(f"{key} of able must be yes or no", repr(text), way_out)
        attributes[key] = text == "yes"
    if "reduce-bandwidth" in options:
        attributes["reduce_bandwidth"] = options["reduce-bandwidth"][0]
    ability = read_ability(attributes, "able") or SwitchAbility()

    def build() -> Topology:
        topology = inner.build()
        chosen = _switches(topology, options.get("switch", []))
        abilities = {node: able for node, able in topology.abilities.items() if node not in chosen}
        if ability.is_able:
            abilities |= dict.fromkeys(chosen, ability)
        able = replace(topology, abilities=abilities, spec=str(call))
        return replace(able, automorphisms=tuple(each for each in able.automorphisms if is_automorphism(able, each)))

    return TopologyPlan(str(call), inner.nodes, inner.links, build)


def _inner_plan(call: FunctionCall, plan_of: PlanOf, way_out: str) -> TopologyPlan:
    """Return the plan for the first argument of `call`, which must be a topology."""
    first = call.arguments[0]
    if not isinstance(first, (FamilyCall, FileCall, FunctionCall)):
        raise InvalidInput(f"the first argument of {call.name} must be a topology spec", str(first), way_out)
    return plan_of(first)


def _times(call: FunctionCall, syntax: str, expected: str = "a spec and a", largest: int = _MAX_TIMES) -> int:
    """Return the whole number that follows the inner spec. `expected`: words before "whole number" in the error."""
    numbers = call.arguments[1:]
    if len(numbers) != 1 or not isinstance(numbers[0], Number):
        raise InvalidInput(f"{call.name} must have {expected} whole number", str(call), f"write {syntax}")
    text = numbers[0].text
    value = int(text) if len(text) <= 18 else largest + 1
    rule = f"the number of {call.name} must lie between 1 and {largest}"
    require(1 <= value <= largest, rule, call, "choose another number")
    return value


def _read_link(text: str) -> LostLink:
    match = _LINK.fullmatch(text)
    if match is None:
        raise InvalidInput("a link must be written A-B or A>B with ranks or node ids", text or '""', "write link=0-1")
    return LostLink(match[1], match[3], one_way=match[2] == ">")


def _switches(topology: Topology, names: Sequence[str]) -> list[int]:
    """Return the switches whose id, or the part of it before the colon, is in `names`; all if `names` is empty."""
    switches = {name: topology.compute_count + i for i, name in enumerate(topology.node_ids[topology.compute_count :])}
    chosen: set[int] = set()
    for name in names:
        nodes = [node for switch, node in switches.items() if name in (switch, switch.partition(":")[0])]
        if not nodes:
            way_out = "`chorale topology show` lists the switches"
            raise InvalidInput(f"{topology.spec} has no switch {{}}", name, way_out)
        chosen.update(nodes)
    if not switches:
        raise InvalidInput("{} has no switches", topology.spec, "choose a network with switches")
    return sorted(chosen) if names else list(switches.values())


FUNCTION_LIST = (
    Function("line", "line(spec;n)", "line(bipartite:4;2)", "line graph, n times (once without n)", plan_line),
    Function("degree", "degree(spec;n)", "degree(complete:3;2)", "n copies of every node, all linked", plan_degree),
    Function("power", "power(spec;n)", "power(uniring:1,4;2)", "Cartesian product of n copies", plan_power),
    Function("product", "product(spec;spec;…)", "product(biring:2,8;uniring:1,4)", "Cartesian product", plan_product),
    Function(
        "bidirectional",
        "bidirectional(spec)",
        "bidirectional(kautz:2,2)",
        "with its transpose",
        _of_one_topology(bidirectional, 2),
    ),
    Function(
        "scaled",
        _SCALED,
        "scaled(torus:4x4;link=0-1;factor=1/2)",
        "some links slower or faster by a factor",
        plan_scaled,
    ),
    Function(
        "transpose", "transpose(spec)", "transpose(uniring:1,4)", "every link reversed", _of_one_topology(transpose)
    ),
    Function(
        "without",
        _WITHOUT,
        "without(torus:4x4;node=5;link=0-1)",
        "without failed nodes and links; K, A, B are ranks or node ids",
        plan_without,
    ),
    Function("able", _ABLE, "able(fattree:4)", "switches that multicast and add, by id or kind (all)", plan_able),
    Function(
        "processes",
        "processes(spec)",
        "processes(able(switch:4,1))",
        "switches that multicast and add become compute nodes, for emulation",
        _of_one_topology(process_network),
    ),
)
