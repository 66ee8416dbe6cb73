"""What switches can do besides forwarding: multicast to several neighbours and add up data from several neighbours."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chorale.synth.errors import InvalidInput
from chorale.synth.identity import parse_rational

_MAX_NAMES = 32
_MAX_NAME = 32


@dataclass(frozen=True, slots=True)
class SwitchAbility:
    """What one switch can do with data that it receives, besides forwarding it.

    multicast:         whether it can send identical copies to several neighbours
    reduce:            whether it can add up data from several neighbours and forward the sum
    reduce_bandwidth:  maximum output rate of sums, in the topology's bandwidth unit; None if only the links limit it
    reduce_types:      supported element types, for example float32; empty if all are supported
    reduce_operations: supported operations, for example sum; empty if all are supported
    """

    multicast: bool = False
    reduce: bool = False
    reduce_bandwidth: Fraction | None = None
    reduce_types: tuple[str, ...] = ()
    reduce_operations: tuple[str, ...] = ()

    @property
    def is_able(self) -> bool:
        """Whether the switch can do anything besides forwarding."""
        return self.multicast or self.reduce

    def facts(self) -> list[Any]:
        """Return all fields as a list, from which the topology's content id is computed."""
        return [self.multicast, self.reduce, self.reduce_bandwidth, self.reduce_types, self.reduce_operations]


Abilities = Mapping[int, SwitchAbility]
"""Abilities of switches by node; a switch without an entry only forwards data."""

NVSWITCH = SwitchAbility(
    multicast=True,
    reduce=True,
    reduce_types=("float16", "bfloat16", "float32", "float64", "int32", "uint32", "int64", "uint64"),
    reduce_operations=("sum", "min", "max"),
)
"""NVSwitch 3 and later, with NVLink SHARP: the types and operations for which NCCL uses it (min and max not for float32
and float64). Source: NVIDIA, "NVLink and NVSwitch"; NCCL 2.2x, src/include/device.h."""


def moved_abilities(abilities: Abilities, new_index: NDArray[np.integer], alive: NDArray[np.bool_]) -> Abilities:
    """Return the abilities of the switches that are `alive`, keyed by their new indices."""
    return {int(new_index[node]): ability for node, ability in abilities.items() if alive[node]}


def read_ability(attributes: Mapping[str, object], node: str) -> SwitchAbility | None:
    """Return the ability of a switch, read from its attributes in a file, or None if the switch only forwards data.

    `reduce_types` and `reduce_operations` are lists or comma-separated text. Raises InvalidInput, which names the
    wrong attribute.
    """
    reduce = _flag(attributes, "reduce", node)
    given = attributes.get("reduce_bandwidth")
    bandwidth = None if given is None else parse_rational(given, f"the reduce_bandwidth of node {node}")
    if bandwidth is not None and bandwidth <= 0:
        way_out = "correct it, or write reduce: false"
        raise InvalidInput(f"the reduce_bandwidth of node {node} must be positive", bandwidth, way_out)
    names: dict[str, tuple[str, ...]] = {}
    for key in REDUCE_LISTS:
        value, where = attributes.get(key), f"{key} of node {node}"
        items = [item.strip() for item in value.split(",") if item.strip()] if isinstance(value, str) else value
        if items is not None and not isinstance(items, (list, tuple)):
            raise InvalidInput(f"{where} must be a list of names", repr(value), 'write for example ["float32"]')
        for item in items or ():
            if not (isinstance(item, str) and item.isidentifier() and len(item) <= _MAX_NAME):
                raise InvalidInput(f"{where} must hold names of letters, digits and _", repr(item), "correct it")
        if len(items or ()) > _MAX_NAMES:
            raise InvalidInput(f"{where} must hold at most {_MAX_NAMES} names", len(items or ()), "leave some out")
        names[key] = tuple(items or ())
    if not reduce and (bandwidth is not None or any(names.values())):
        rule = f"node {node} must reduce if it says how"
        raise InvalidInput(rule, "reduce: false", "write reduce: true, or leave reduce_bandwidth, … out")
    ability = SwitchAbility(_flag(attributes, "multicast", node), reduce, bandwidth, **names)
    return ability if ability.is_able else None


REDUCE_LISTS = ("reduce_types", "reduce_operations")
ABILITY_KEYS = ("multicast", "reduce", "reduce_bandwidth", *REDUCE_LISTS)
"""Names of a switch's attributes in topology files."""


def _flag(attributes: Mapping[str, object], key: str, node: str) -> bool:
    value = attributes.get(key, False)
    if isinstance(value, bool):
        return value
    raise InvalidInput(f"{key} of node {node} must be true or false", repr(value), "correct it")
