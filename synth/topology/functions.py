"""Functions of topology specs: how arguments are read, and how large the result will be."""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np

from chorale.synth.errors import InvalidInput
from chorale.synth.identity import parse_rational
from chorale.synth.topology.abilities import SwitchAbility, read_ability
from chorale.synth.topology.automorphism import is_automorphism
from chorale.synth.topology.expansions import bidirectional, cartesian_product, degree_expansion, line_graph
from chorale.synth.topology.failures import LostLink, rescaled, scaled, without
from chorale.synth.topology.grammar import FamilyCall, FileCall, FunctionCall, Number, Option
from chorale.synth.topology.registry import Function, PlanOf, TopologyPlan, require
from chorale.synth.topology.relabelling import process_network
from chorale.synth.topology.topology import MAX_LINKS, MAX_NODES, Topology, transpose

_LINK = re.compile(r"([A-Za-z0-9_.:]+)([->])([A-Za-z0-9_.:]+)")
_WITHOUT = "without(spec;node=K;link=A-B;link=A>B;part=p/q;…)"


def plan_transpose(call: FunctionCall, plan_of: PlanOf) -> TopologyPlan:
    """Every link reversed. Diameter and degree stay; a reduce-scatter is scheduled on the transpose."""
    way_out = "write transpose(spec)"
    require(len(call.arguments) == 1, "transpose must have exactly one argument", call, way_out)
    inner = inner_plan(call, plan_of, way_out)
    return TopologyPlan(str(call), inner.nodes, inner.links, lambda: transpose(inner.build()))


def plan_without(call: FunctionCall, plan_of: PlanOf) -> TopologyPlan:
    """A degraded fabric: nodes and links are gone, survivors are renumbered in order.

    `part` after a link says which part of it is gone, such as `part=1/18` for one of 18 NVLinks of a GPU.
    """
    inner = inner_plan(call, plan_of, f"write {_WITHOUT}")
    options = call.arguments[1:]
    require(bool(options), "without must be told what to remove", call, f"write {_WITHOUT}")
    nodes: list[str] = []
    links: list[LostLink] = []
    partial: list[tuple[LostLink, Fraction]] = []
    may_be_partial = False
    for option in options:
        if not isinstance(option, Option) or option.key not in ("node", "link", "part"):
            raise InvalidInput("without takes node=K, link=A-B and part=p/q", str(option), f"write {_WITHOUT}")
        if option.key == "node":
            nodes.append(option.value)
        elif option.key == "link":
            links.append(read_link(option.value))
        else:
            require(may_be_partial, "part must follow the link that it is of", call, f"write {_WITHOUT}")
            part = parse_rational(option.value, "the part of without")
            require(0 < part < 1, "the part of a link that is gone must lie between 0 and 1", call, "write part=1/18")
            partial.append((links.pop(), part))
        may_be_partial = option.key == "link"

    def build() -> Topology:
        topology = inner.build()
        for link, part in partial:
            topology = scaled(topology, [link], 1 - part, str(call))
        return without(topology, nodes, links, str(call)) if nodes or links else topology

    return TopologyPlan(str(call), inner.nodes, inner.links, build)


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


_MAX_TIMES = MAX_NODES.bit_length() - 1
_MAX_COUNTED = 2**14
_SCALED = "scaled(spec;link=A-B;link=A>B;…;factor=p/q;…)"


def plan_line(call: FunctionCall, plan_of: PlanOf) -> TopologyPlan:
    """Line graph, n times: every link becomes a node, linked with those that follow it.

    Degree d stays, N nodes become d N, the diameter grows by one each time; reverse-symmetry stays. Keeps Moore
    optimality; the bandwidth factor grows by at most 1/N (appendix D.1). Self-loops count as links.
    """
    times = _times(call, "line(spec) or line(spec;n)", optional=True)
    plan = inner_plan(call, plan_of, "write line(spec) or line(spec;n)")
    least = plan
    for _ in range(times):
        least = _least_line_of(least, str(call))
    if least.links > MAX_LINKS:
        return least  # too large however degrees differ: refused without building anything
    for _ in range(times):
        plan = _line_of(plan, str(call))
    return plan


def plan_degree(call: FunctionCall, plan_of: PlanOf) -> TopologyPlan:
    """Degree expansion: n copies of every node, each linked with all copies of the neighbours.

    Degree d becomes n d, N nodes n N; reverse-symmetry and bandwidth optimality stay (theorem 11). No self-loops.
    """
    copies = _times(call, "degree(spec;n)", optional=False, largest=MAX_NODES)
    inner = inner_plan(call, plan_of, "write degree(spec;n)")
    spec = str(call)
    links = inner.links * copies**2
    return TopologyPlan(spec, inner.nodes * copies, links, lambda: degree_expansion(inner.build(), copies, spec))


def plan_power(call: FunctionCall, plan_of: PlanOf) -> TopologyPlan:
    """Cartesian power: the product of n copies.

    Degree d becomes n d, N nodes N^n, diameters add up; reverse-symmetry stays, and so does bandwidth optimality
    (theorem 12).
    """
    times = _times(call, "power(spec;n)", optional=False)
    inner = inner_plan(call, plan_of, "write power(spec;n)")
    return _plan_product(str(call), [inner] * times, "power")


def plan_product(call: FunctionCall, plan_of: PlanOf) -> TopologyPlan:
    """Cartesian product: nodes are tuples, a link changes one coordinate.

    Degrees and diameters add up; the last factor's rank runs fastest. BFB is bandwidth-optimal on it if it is so on
    every factor and the factors have no parallel links (theorem 13).
    """
    way_out = "write product(spec;spec;…)"
    require(len(call.arguments) >= 2, "product must have at least two arguments", call, way_out)
    inner: list[TopologyPlan] = []
    for argument in call.arguments:
        if not isinstance(argument, (FamilyCall, FileCall, FunctionCall)):
            raise InvalidInput("every argument of product must be a topology spec", str(argument), way_out)
        inner.append(plan_of(argument))
    return _plan_product(str(call), inner, "product")


def plan_bidirectional(call: FunctionCall, plan_of: PlanOf) -> TopologyPlan:
    """The network and its transpose together: degree 2 d, every link with one in the other direction.

    Costs stay for reverse-symmetric networks: half of the data runs each way (appendix A.6).
    """
    way_out = "write bidirectional(spec)"
    require(len(call.arguments) == 1, "bidirectional must have exactly one argument", call, way_out)
    inner = inner_plan(call, plan_of, way_out)
    return TopologyPlan(str(call), inner.nodes, 2 * inner.links, lambda: bidirectional(inner.build(), str(call)))


def plan_scaled(call: FunctionCall, plan_of: PlanOf) -> TopologyPlan:
    """A degraded fabric: the bandwidth of some links multiplied by a positive factor.

    A factor is for the links before it, back to the factor before; a single one may stand anywhere. A link that is
    named with two factors is multiplied by both.
    """
    inner = inner_plan(call, plan_of, f"write {_SCALED}")
    groups = _scaled_groups(call)

    def build() -> Topology:
        topology = inner.build()
        for links, factor in groups:
            topology = scaled(topology, links, factor, str(call))
        return topology

    return TopologyPlan(str(call), inner.nodes, inner.links, build)


def _scaled_groups(call: FunctionCall) -> list[tuple[list[LostLink], Fraction]]:
    """Return the links that go with each factor."""
    way_out = f"write {_SCALED}"
    groups: list[tuple[list[LostLink], Fraction]] = []
    links: list[LostLink] = []
    options = call.arguments[1:]
    single = sum(map(_is_factor, options)) == 1
    for option in sorted(options, key=_is_factor) if single else options:
        if not isinstance(option, Option) or option.key not in ("link", "factor"):
            raise InvalidInput("scaled takes link=A-B and factor=p/q", str(option), way_out)
        if option.key == "link":
            links.append(read_link(option.value))
        else:
            require(bool(links), "scaled must be told which links, before each factor", call, way_out)
            groups.append((links, _factor(option.value, call)))
            links = []
    require(not links or bool(groups), "scaled must have a factor", call, way_out)
    require(not links, "every link of scaled must have a factor after it", call, way_out)
    require(bool(groups), "scaled must be told which links", call, way_out)
    return groups


def _is_factor(option: object) -> bool:
    return isinstance(option, Option) and option.key == "factor"


def _factor(text: str, call: FunctionCall) -> Fraction:
    factor = parse_rational(text, "the factor of scaled")
    require(factor > 0, "the factor of scaled must be positive", call, "use without(…) to take links out")
    return factor


def _line_of(plan: TopologyPlan, spec: str) -> TopologyPlan:
    """Plan the line graph: a node per link, a link per walk of two links.

    Counted on the network itself up to `_MAX_COUNTED` links, because degrees may differ. Beyond, that of equal degrees,
    which is exact for them and else the least that it can be: `line_graph` checks the exact size too.
    """
    if plan.links > _MAX_COUNTED or plan.links * plan.links // plan.nodes > MAX_LINKS:
        return _least_line_of(plan, spec)
    inner = plan.build()
    nodes = inner.node_count
    walks = np.bincount(inner.links.dst, minlength=nodes) * np.bincount(inner.links.src, minlength=nodes)
    return TopologyPlan(spec, plan.links, int(walks.sum()), lambda: line_graph(inner, spec))


def _least_line_of(plan: TopologyPlan, spec: str) -> TopologyPlan:
    return TopologyPlan(spec, plan.links, plan.links * plan.links // plan.nodes, lambda: line_graph(plan.build(), spec))


def _plan_product(spec: str, inner: Sequence[TopologyPlan], function: str) -> TopologyPlan:
    nodes = math.prod(plan.nodes for plan in inner)
    links = sum(plan.links * nodes // plan.nodes for plan in inner)

    def build() -> Topology:
        built: dict[int, Topology] = {}
        for plan in inner:
            if id(plan) not in built:
                built[id(plan)] = plan.build()
        return cartesian_product([built[id(plan)] for plan in inner], spec, function)

    return TopologyPlan(spec, nodes, links, build)


def _times(call: FunctionCall, syntax: str, optional: bool, largest: int = _MAX_TIMES) -> int:
    """Return the number that follows the inner spec, 1 if it is optional and missing."""
    if optional and len(call.arguments) == 1:
        return 1
    expected = "a spec and a whole number" if not optional else "a spec and at most one whole number"
    numbers = call.arguments[1:]
    if len(numbers) != 1 or not isinstance(numbers[0], Number):
        raise InvalidInput(f"{call.name} must have {expected}", str(call), f"write {syntax}")
    text = numbers[0].text
    value = int(text) if len(text) <= 18 else largest + 1
    rule = f"the number of {call.name} must lie between 1 and {largest}"
    require(1 <= value <= largest, rule, call, "choose another number")
    return value


EXPANSION_FUNCTIONS = (
    Function("line", "line(spec;n)", "line(bipartite:4;2)", "line graph, n times (once without n)", plan_line),
    Function("degree", "degree(spec;n)", "degree(complete:3;2)", "n copies of every node, all linked", plan_degree),
    Function("power", "power(spec;n)", "power(uniring:1,4;2)", "Cartesian product of n copies", plan_power),
    Function("product", "product(spec;spec;…)", "product(biring:2,8;uniring:1,4)", "Cartesian product", plan_product),
    Function(
        "bidirectional", "bidirectional(spec)", "bidirectional(kautz:2,2)", "with its transpose", plan_bidirectional
    ),
    Function(
        "scaled",
        _SCALED,
        "scaled(torus:4x4;link=0-1;factor=1/2)",
        "some links slower or faster by a factor",
        plan_scaled,
    ),
)


_ABLE = "able(spec;switch=S;…;multicast=yes|no;reduce=yes|no;reduce-bandwidth=R;types=T,…;operations=O,…)"
_USABLE = "usable(spec;switch=S;…;share=p/q)"
_PROCESSES = "processes(spec)"
_FLAGS = {"yes": True, "no": False}
_LISTS = {"types": "reduce_types", "operations": "reduce_operations"}


def plan_able(call: FunctionCall, plan_of: PlanOf) -> TopologyPlan:
    """Switches that multicast and add, such as an InfiniBand fabric with SHARP: `able(fattree:4)`.

    S is the id of a switch or the kind before the colon of ids; without `switch=` all switches are meant. They get both
    abilities unless said otherwise; `multicast=no;reduce=no` makes switches that only pass on. `reduce-bandwidth` is
    the most sums that a switch makes, in the unit of the network. Earlier abilities of these switches are replaced.
    """
    inner = inner_plan(call, plan_of, f"write {_ABLE}")
    options = _options(call, ("switch", "multicast", "reduce", "reduce-bandwidth", *_LISTS), _ABLE)
    ability = _ability(options)
    names = options.get("switch", [])
    return TopologyPlan(
        str(call), inner.nodes, inner.links, lambda: with_ability(inner.build(), names, ability, str(call))
    )


def plan_usable(call: FunctionCall, plan_of: PlanOf) -> TopologyPlan:
    """What measurements leave of line rates: a share of the bandwidth of all links of some switches.

    S as in `able`; without `switch=` all links are meant. Bounds on the result are bounds at these rates, not at
    line rates. The rate of adding is a separate option: `reduce-bandwidth` of `able`.
    """
    inner = inner_plan(call, plan_of, f"write {_USABLE}")
    options = _options(call, ("switch", "share"), _USABLE)
    shares = options.get("share", [])
    if len(shares) != 1:
        raise InvalidInput("usable must have one share", str(call), f"write {_USABLE}")
    share = parse_rational(shares[0], "the share of usable")
    if not 0 < share <= 1:
        raise InvalidInput("the share of usable must lie above 0, up to 1", share, "write such as share=4/5")
    names = options.get("switch", [])
    return TopologyPlan(
        str(call), inner.nodes, inner.links, lambda: with_usable_share(inner.build(), names, share, str(call))
    )


def plan_processes(call: FunctionCall, plan_of: PlanOf) -> TopologyPlan:
    """The network in which switches that multicast or add are compute nodes after the ranks: `processes(able(…))`.

    So the local runner emulates them, by a process each, where a program lets them act. On a fabric of this network
    (`chorale fabric up`) these processes run on separate hosts.
    """
    inner = inner_plan(call, plan_of, f"write {_PROCESSES}")
    if len(call.arguments) > 1:
        raise InvalidInput("processes takes a network only", str(call), f"write {_PROCESSES}")
    return TopologyPlan(str(call), inner.nodes, inner.links, lambda: process_network(inner.build()))


def with_ability(topology: Topology, names: Iterable[str], ability: SwitchAbility, spec: str) -> Topology:
    """Return `topology` whose switches of these ids or kinds (all without any) can do what `ability` says, no more.

    Known symmetries that do not keep the abilities are dropped.
    """
    abilities: dict[int, SwitchAbility] = dict(topology.abilities)
    for node in _switches(topology, names):
        abilities.pop(node, None)
        if ability.is_able:
            abilities[node] = ability
    return _changed(replace(topology, abilities=abilities, spec=spec))


def with_usable_share(topology: Topology, names: list[str], share: Fraction, spec: str) -> Topology:
    """Return `topology` where the links at switches of these ids or kinds (all links without any) have a share left."""
    links = topology.links
    chosen = np.zeros(topology.node_count, dtype=np.bool_)
    chosen[_switches(topology, names) if names else slice(None)] = True
    return _changed(rescaled(topology, chosen[links.src] | chosen[links.dst], share, spec))


def _changed(topology: Topology) -> Topology:
    """Return `topology` with those of its symmetries that still are symmetries."""
    kept = tuple(symmetry for symmetry in topology.automorphisms if is_automorphism(topology, symmetry))
    return replace(topology, automorphisms=kept)


def _switches(topology: Topology, names: Iterable[str]) -> list[int]:
    """Return the switches of these ids or kinds, all without any name."""
    switches = {name: topology.compute_count + i for i, name in enumerate(topology.node_ids[topology.compute_count :])}
    chosen: list[int] = []
    asked = list(names)
    for name in asked:
        nodes = [node for switch, node in switches.items() if name in (switch, switch.partition(":")[0])]
        if not nodes:
            way_out = "`chorale topology show` lists the switches"
            raise InvalidInput(f"a switch of {topology.spec} must be named by its id or kind", name, way_out)
        chosen += nodes
    if not switches:
        raise InvalidInput("a network must have switches to name them", topology.spec, "choose one with switches")
    return sorted(set(chosen)) if asked else list(switches.values())


def _options(call: FunctionCall, keys: tuple[str, ...], syntax: str) -> dict[str, list[str]]:
    """Return the values of each option in order; only `switch` may be given several times."""
    options: dict[str, list[str]] = {}
    for option in call.arguments[1:]:
        if not isinstance(option, Option) or option.key not in keys:
            raise InvalidInput(f"{call.name} takes {', '.join(keys)}", str(option), f"write {syntax}")
        if option.key in options and option.key != "switch":
            raise InvalidInput(f"{call.name} takes one {option.key}", str(option), f"write {syntax}")
        options.setdefault(option.key, []).append(option.value)
    return options


def _ability(options: dict[str, list[str]]) -> SwitchAbility:
    attributes: dict[str, object] = {"multicast": True, "reduce": True}
    for key in ("multicast", "reduce"):
        for text in options.get(key, []):
            if text not in _FLAGS:
                raise InvalidInput(f"{key} of able must be yes or no", repr(text), f"write {_ABLE}")
            attributes[key] = _FLAGS[text]
    for text in options.get("reduce-bandwidth", []):
        attributes["reduce_bandwidth"] = text
    for key, name in _LISTS.items():
        for text in options.get(key, []):
            attributes[name] = text
    return read_ability(attributes, "able") or SwitchAbility()


SWITCH_FUNCTIONS = (
    Function("able", _ABLE, "able(fattree:4)", "switches that multicast and add, by id or kind (all)", plan_able),
    Function(
        "usable",
        _USABLE,
        "usable(h100:2;switch=nvswitch;share=4/5)",
        "what measurements leave of the line rates of switches",
        plan_usable,
    ),
    Function(
        "processes",
        _PROCESSES,
        "processes(able(switch:4,1))",
        "switches that multicast and add as compute nodes, as they are emulated",
        plan_processes,
    ),
)
