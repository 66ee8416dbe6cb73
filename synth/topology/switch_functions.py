"""Functions of topology specs about switches: what they can do, and how much of their line rates is usable."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction

import numpy as np

from chorale.synth.errors import InvalidInput
from chorale.synth.identity import parse_rational
from chorale.synth.topology.abilities import SwitchAbility, read_ability
from chorale.synth.topology.automorphism import is_automorphism
from chorale.synth.topology.failures import rescaled
from chorale.synth.topology.functions import inner_plan
from chorale.synth.topology.grammar import FunctionCall, Option
from chorale.synth.topology.registry import Function, PlanOf, TopologyPlan
from chorale.synth.topology.relabelling import process_network
from chorale.synth.topology.topology import Topology

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
    line rates. The rate of adding is an option of its own: `reduce-bandwidth` of `able`.
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
    (`chorale fabric up`) these processes have hosts of their own.
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
