"""Reads and writes topologies as JSON in the format chorale-topology/1."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from fractions import Fraction
from itertools import repeat
from typing import Any, NoReturn, get_args

from chorale.synth.document_limits import require_small_json
from chorale.synth.errors import InvalidInput
from chorale.synth.identity import rational_text
from chorale.synth.topology.check import ABILITY_KEYS, NamedLink, NamedNode, assemble_topology, first_repeated
from chorale.synth.topology.topology import Assumption, Source, Topology

FORMAT = "chorale-topology/1"
_WAY_OUT = f"follow the format {FORMAT} in the guide"
_MAX_TEXT = 200


def from_json(content: bytes, spec: str = "file:topology.json") -> Topology:
    """Return the checked topology in `content`. Numbers are read exactly: 0.1 means one tenth.

    Raises InvalidInput, which names the invalid field; unknown and repeated keys are errors.
    """
    document = _load(content)
    _require_keys(document, "the document", ("format", "name", "bandwidth_unit", "nodes", "links"), ("assumptions",))
    if document["format"] != FORMAT:
        raise InvalidInput(f"the format must be {FORMAT}", repr(document["format"]), _WAY_OUT)
    _text(document["name"], "name")
    nodes: list[NamedNode] = []
    for where, members in _objects(document["nodes"], "nodes"):
        _require_keys(members, where, ("id", "kind"), ABILITY_KEYS)
        abilities = {key: members[key] for key in ABILITY_KEYS if members.get(key) is not None}
        nodes.append(NamedNode(_text(members["id"], f"{where}.id"), members["kind"], abilities))
    links: list[NamedLink] = []
    options = ("latency_s", "bidirectional", "expected_bandwidth", "guess")
    for where, members in _objects(document["links"], "links"):
        _require_keys(members, where, ("src", "dst", "bandwidth"), options)
        flags = {name: members.get(name, False) for name in ("bidirectional", "guess")}
        for name, value in flags.items():
            if not isinstance(value, bool):
                raise InvalidInput(f"{where}.{name} must be true or false", repr(value), _WAY_OUT)
        src, dst = _text(members["src"], f"{where}.src"), _text(members["dst"], f"{where}.dst")
        expected = members.get("expected_bandwidth")
        rates = members["bandwidth"], members.get("latency_s", 0)
        links.append(NamedLink(src, dst, *rates, expected=expected, **flags))
    assumptions: list[Assumption] = []
    for where, members in _objects(document.get("assumptions", []), "assumptions"):
        _require_keys(members, where, ("what", "value", "source", "reference"))
        what, given, reference = (_text(members[key], f"{where}.{key}") for key in ("what", "value", "reference"))
        source = next((name for name in get_args(Source) if name == members["source"]), None)
        if source is None:
            raise InvalidInput(f"{where}.source must be file, published or guess", repr(members["source"]), _WAY_OUT)
        assumptions.append(Assumption(what, given, source, reference))
    return assemble_topology(spec, document["bandwidth_unit"], nodes, links, assumptions)


def to_json(topology: Topology) -> dict[str, Any]:
    """Return `topology` as a JSON document that `from_json` reads back with the same content id."""
    ids, expected = topology.node_ids, topology.expected
    guessed = frozenset[tuple[str, str]]() if topology.provenance is None else topology.provenance.guessed
    document: dict[str, Any] = {
        "format": FORMAT,
        "name": topology.spec[:_MAX_TEXT],
        "bandwidth_unit": topology.bandwidth_unit,
        "nodes": [
            {"id": name, "kind": topology.node_kind(node)} | ability_members(topology, node)
            for node, name in enumerate(ids)
        ],
        "links": [
            {
                "src": ids[link.src],
                "dst": ids[link.dst],
                "bandwidth": json_number(link.bandwidth),
                "latency_s": json_number(link.latency_s),
                **({} if slower is None else {"expected_bandwidth": json_number(slower.bandwidth)}),
                **({"guess": True} if (ids[link.src], ids[link.dst]) in guessed else {}),
            }
            for link, slower in zip(topology.links, expected.links if expected else repeat(None), strict=False)
        ],
    }
    assumptions = [asdict(fact) for fact in topology.assumptions]
    return document | ({"assumptions": assumptions} if assumptions else {})


def json_number(value: Fraction) -> int | float | str:
    """Return `value` as a JSON number if that is exact, otherwise as a string "p/q"."""
    if value.denominator == 1:
        return int(value)
    return float(value) if Fraction(repr(float(value))) == value else rational_text(value)


def ability_members(
    topology: Topology,
    node: int,
    number: Callable[[Fraction], Any] = json_number,
    names: Callable[[tuple[str, ...]], Any] = list,
) -> dict[str, Any]:
    """Return the JSON members that describe a switch's abilities. Empty for nodes without abilities.

    `number` and `names` convert numbers and lists of names to the file format.
    """
    ability = topology.abilities.get(node)
    if ability is None:
        return {}
    members: dict[str, Any] = {"multicast": ability.multicast, "reduce": ability.reduce}
    if ability.reduce_bandwidth is not None:
        members["reduce_bandwidth"] = number(ability.reduce_bandwidth)
    lists = {"reduce_types": ability.reduce_types, "reduce_operations": ability.reduce_operations}
    return members | {key: names(values) for key, values in lists.items() if values}


class _Decimal(str):
    """A JSON number with a point or an exponent, kept as text so that it remains exact."""

    __slots__ = ()


def _load(content: bytes) -> dict[str, Any]:
    require_small_json(content, "a topology file")

    def refuse_constant(name: str) -> NoReturn:
        raise InvalidInput("{} is not a finite number", name, "correct the file")

    def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if (twice := first_repeated(key for key, _ in pairs)) is not None:
            raise InvalidInput("the key {} appears twice in a JSON object", twice, "remove the second one")
        return dict(pairs)

    hooks: dict[str, Any] = {"parse_constant": refuse_constant, "object_pairs_hook": unique_keys}
    try:
        document = json.loads(content, parse_float=_Decimal, **hooks)
    except InvalidInput:
        raise
    except json.JSONDecodeError as error:
        value = f"{error.msg} at line {error.lineno} column {error.colno}"
        raise InvalidInput("the topology file is not valid JSON: {}", value, "correct the file") from None
    except (ValueError, RecursionError) as error:  # invalid UTF-8, numbers with thousands of digits, very deep nesting
        raise InvalidInput("the topology file is not valid JSON: {}", error, "correct the file") from None
    return _object(document, "the document")


def _object(value: object, where: str) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    raise InvalidInput(f"{where} must be a JSON object", _kind_of(value), _WAY_OUT)


def _objects(value: object, where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (name for error messages, object) for each element of a JSON array of objects."""
    if not isinstance(value, list):
        raise InvalidInput(f"{where} must be a JSON array", _kind_of(value), _WAY_OUT)
    for index, item in enumerate(value):
        yield f"{where}[{index}]", _object(item, f"{where}[{index}]")


def _text(value: object, where: str) -> str:
    if isinstance(value, str) and not isinstance(value, _Decimal) and len(value) <= _MAX_TEXT:
        return value
    raise InvalidInput(f"{where} must be text of at most {_MAX_TEXT} characters", repr(value), _WAY_OUT)


def _require_keys(
    members: Mapping[str, Any], where: str, needed: tuple[str, ...], optional: tuple[str, ...] = ()
) -> None:
    missing = [key for key in needed if key not in members]
    if missing:
        raise InvalidInput(f"{where} has no key {missing[0]}", "", _WAY_OUT)
    unknown = [key for key in members if key not in needed and key not in optional]
    if unknown:
        allowed = ", ".join(needed + optional)
        raise InvalidInput(f"{where} has the unknown key {{}}", repr(unknown[0]), f"use {allowed}")


def _kind_of(value: object) -> str:
    return "null" if value is None else f"a {type(value).__name__.lstrip('_')}"
