"""Arguments of the public functions (networks and sizes in several forms), and how notebooks display results."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from html import escape
from typing import Any, ParamSpec, Self, TypeAlias, TypeVar

import networkx as nx

from chorale.runners.api.units import parse_sizes
from chorale.synth.errors import ChoraleError, InvalidInput
from chorale.synth.topology.formats.networkx_graph import from_networkx
from chorale.synth.topology.topology import Topology
from chorale.tuner.files.topology_specs import load_topology
from chorale.tuner.reports.hints import explained, for_python

Given = ParamSpec("Given")
Returned = TypeVar("Returned")

Network: TypeAlias = "str | Topology | nx.Graph[Any]"
"""A topology spec such as `torus:4x4` or `file:fabric.json`, a topology, or a NetworkX graph."""

Sizes: TypeAlias = str | int | Sequence[str | int]
"""Buffer sizes in bytes: `1MiB`, `64KiB,1M`, `4KiB:1GiB:x4`, a number or several."""


def in_words_of_arguments(function: Callable[Given, Returned]) -> Callable[Given, Returned]:
    """Wrap `function` so that its errors name Python arguments instead of command-line flags."""

    @wraps(function)
    def called(*args: Given.args, **named: Given.kwargs) -> Returned:
        try:
            return function(*args, **named)
        except ChoraleError as error:
            for_python(explained(error))
            raise

    return called


def network_of(network: Network) -> Topology:
    """Return the checked topology of a spec, a NetworkX graph or a topology. Raises InvalidInput for anything else."""
    if isinstance(network, Topology):
        return network
    given: object = network  # callers without a type checker give anything
    if not isinstance(given, str | nx.Graph):
        way_out = "give a spec such as 'torus:4x4', a topology or a NetworkX graph"
        raise InvalidInput("a network must be a spec, a topology or a graph", network, way_out)
    return load_topology(network) if isinstance(network, str) else from_networkx(network)


def size_list(sizes: Sizes) -> tuple[int, ...]:
    """Return sizes in bytes; InvalidInput for text that is no size."""
    if isinstance(sizes, str):
        return tuple(parse_sizes(sizes))
    return (sizes,) if isinstance(sizes, int) else tuple(size for each in sizes for size in size_list(each))


def options_of(kind: type[Any], rule: str, **options: Any) -> Any:
    """Return `kind`, a dataclass of options, with `options`; InvalidInput that says `rule` for unknown names."""
    try:
        return kind(**options)
    except TypeError:
        known = kind.__dataclass_fields__
        value = ", ".join(sorted(set(options) - set(known)))
        raise InvalidInput(rule, value, f"choose from {', '.join(known)}") from None


class Methods:
    """Base class to put before a class of another package: adds the next steps as methods and changes nothing else."""

    @classmethod
    def of(cls, value: Any, **facts: Any) -> Self:
        """Return `value`, of the class below, with these methods, and with `facts` as further attributes."""
        if isinstance(value, cls):
            return value
        copied = object.__new__(cls)
        for name in {name for base in cls.__mro__ for name in base.__dict__.get("__slots__", ())}:
            object.__setattr__(copied, name, getattr(value, name))
        copied.__dict__.update(facts)
        return copied


class Shown(ABC):
    """A result that notebooks show as a table: names and values from `_texts`, with `_title` above them."""

    _title = ""

    @abstractmethod
    def _texts(self) -> Mapping[str, str]:
        """Return the value of each name."""

    def _repr_html_(self) -> str:
        caption = f"<caption>{escape(self._title)}</caption>" if self._title else ""
        cells = "".join(
            f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in self._texts().items()
        )
        return f"<table>{caption}{cells}</table>"
