"""Parses topology specs, and defines how families and functions are declared and planned.

    spec     = family | function | file
    family   = NAME [":" ARGUMENTS]                    torus:4x4x2    diamond
    function = NAME "(" argument {";" argument} ")"    without(torus:4x4;node=3)
    argument = spec | NAME "=" VALUE | NUMBER
    file     = "file:" PATH                            the rest of the spec; in a function, up to ";" or ")"

Parentheses inside a path must be balanced when the path is an argument of a function.

A plan is a topology whose size is known before it is built.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.topology import MAX_LINKS, MAX_NODES, Topology

MAX_SPEC_LENGTH = 2**16
MAX_DEPTH = 16
FILE_PREFIX = "file:"
MODEL_MARK = "?model="
"""Separates the path from the GPU model, for files that do not name the GPUs: file:topo.txt?model=H100."""

_PIECE = re.compile(r"[();]|[^();]+")
_NAME = re.compile(r"[a-z][a-z0-9-]*")
_OPTION = re.compile(r"([a-z][a-z0-9-]*)=(.*)", re.DOTALL)
_NUMBER = re.compile(r"[0-9]+")
_WAY_OUT = "write family:arguments, function(spec;…) or file:PATH (see `chorale topology list`)"
_MAX_DIGITS = 18


@dataclass(frozen=True, slots=True)
class FamilyCall:
    """A family with its arguments as text, such as torus:4x4."""

    name: str
    text: str

    def __str__(self) -> str:
        return f"{self.name}:{self.text}" if self.text else self.name


@dataclass(frozen=True, slots=True)
class FileCall:
    path: str

    def __str__(self) -> str:
        return FILE_PREFIX + self.path


@dataclass(frozen=True, slots=True)
class Option:
    """A named argument of a function, such as node=3."""

    key: str
    value: str

    def __str__(self) -> str:
        return f"{self.key}={self.value}"


@dataclass(frozen=True, slots=True)
class Number:
    """A plain number as an argument of a function, such as the 3 in line(s;3)."""

    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A function with its arguments in order, such as transpose(uniring:1,4)."""

    name: str
    arguments: tuple[FamilyCall | FileCall | FunctionCall | Option | Number, ...]

    def __str__(self) -> str:
        return f"{self.name}({';'.join(map(str, self.arguments))})"


SpecTree = FamilyCall | FileCall | FunctionCall
Argument = SpecTree | Option | Number


@lru_cache(maxsize=4096)
def parse_spec(text: str) -> SpecTree:
    """Return the syntax tree of `text` (cached). str(tree) is the spec without unnecessary blanks."""
    if len(text) > MAX_SPEC_LENGTH:
        rule = f"a topology spec must be at most {MAX_SPEC_LENGTH} characters long"
        raise InvalidInput(rule, f"{len(text)} characters", "put the network into a file and use file:PATH")
    stripped = text.strip()
    if stripped.startswith(FILE_PREFIX):
        return _file(stripped)
    reader = _Reader(stripped)
    tree = reader.argument(depth=0)
    if not isinstance(tree, SpecTree):
        raise InvalidInput("the topology spec '{}' begins neither with a family nor with a function", text, _WAY_OUT)
    if reader.peek() is not None:
        raise InvalidInput("there is text after the last parenthesis: {}", text, _WAY_OUT)
    return tree


class _Reader:
    """Recursive-descent parser over the tokens of a spec: "(", ")", ";" and the text between them."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.pieces = [piece for piece in _PIECE.findall(text) if piece.strip()]
        self.position = 0

    def peek(self) -> str | None:
        return self.pieces[self.position] if self.position < len(self.pieces) else None

    def take(self) -> str | None:
        piece = self.peek()
        self.position += 1
        return piece

    def argument(self, depth: int) -> Argument:
        """Read one argument of a function, or the complete spec."""
        if depth > MAX_DEPTH:
            rule = f"functions in a topology spec must nest at most {MAX_DEPTH} deep"
            raise InvalidInput(rule, self.text, "build the inner network first and save it to a file")
        piece = self.take()
        if piece is None or piece in "();":
            rule = "a family or function is missing in the spec {}"
            raise InvalidInput(rule, self.text or '""', _WAY_OUT)
        if piece.lstrip().startswith(FILE_PREFIX):
            path, open_count = piece, 0
            while (piece := self.peek()) is not None and piece != ";" and not (piece == ")" and open_count == 0):
                open_count += {"(": 1, ")": -1}.get(piece, 0)
                path += piece
                self.take()
            return _file(path.strip())
        if self.peek() == "(":
            return FunctionCall(_name(piece, self.text), self._arguments(depth))
        return _leaf(piece, self.text)

    def _arguments(self, depth: int) -> tuple[Argument, ...]:
        self.take()
        arguments = [self.argument(depth + 1)]
        while (piece := self.take()) == ";":
            arguments.append(self.argument(depth + 1))
        if piece != ")":
            raise InvalidInput("a parenthesis is missing in {}", self.text, 'add the missing ")"')
        return tuple(arguments)


def _leaf(piece: str, spec: str) -> Argument:
    piece = piece.strip()
    if _NUMBER.fullmatch(piece):
        return Number(piece)
    if option := _OPTION.fullmatch(piece):
        return Option(option[1], "".join(option[2].split()))
    name, _, arguments = piece.partition(":")
    return FamilyCall(_name(name, spec), "".join(arguments.split()))


def _name(text: str, spec: str) -> str:
    if not _NAME.fullmatch(text.strip()):
        raise InvalidInput("'{}' is not the name of a family or function", spec or '""', _WAY_OUT)
    return text.strip()


def _file(text: str) -> FileCall:
    path = text.removeprefix(FILE_PREFIX)
    if not path or "\0" in path:
        raise InvalidInput("the path after file: is missing", "", "write file:PATH")
    return FileCall(path)


class TooLarge(InvalidInput):
    """Raised for a network above the size limits. `nodes` and `links` are the counts that it would have."""

    def __init__(self, spec: str, nodes: int, links: int) -> None:
        most = f"{MAX_NODES} nodes" if nodes > MAX_NODES else f"{MAX_LINKS} links"
        super().__init__(f"a topology must have at most {most}", spec, "choose a smaller network")
        self.nodes = nodes
        self.links = links

    def __reduce__(self) -> tuple[Any, ...]:
        return TooLarge, (str(self.value), self.nodes, self.links)


@dataclass(frozen=True, slots=True)
class TopologyPlan:
    """A topology that is not built yet. `nodes` (including switches) and `links` are exact counts or upper bounds."""

    spec: str
    nodes: int
    links: int
    build: Callable[[], Topology]

    def __post_init__(self) -> None:
        require_size(self.spec, self.nodes, self.links)


@dataclass(frozen=True, slots=True)
class SpecForm:
    """A family or function for specs, as `chorale topology list` prints it: name, syntax, example and summary."""

    name: str
    syntax: str
    example: str
    summary: str


@dataclass(frozen=True, slots=True)
class Family(SpecForm):
    """A family of topologies with specs `name:arguments`. `plan` returns the plan for such a spec."""

    plan: Callable[[FamilyCall], TopologyPlan]


PlanOf = Callable[[SpecTree], TopologyPlan]
"""Returns the plan for the inner spec of a function."""


@dataclass(frozen=True, slots=True)
class Function(SpecForm):
    """A function `name(arguments)` that transforms topologies. `plan` returns the plan for such a spec."""

    plan: Callable[[FunctionCall, PlanOf], TopologyPlan]


def require_size(spec: str, nodes: int, links: int) -> None:
    """Raise TooLarge if a network with these counts would exceed the size limits."""
    if nodes > MAX_NODES or links > MAX_LINKS:
        raise TooLarge(spec, nodes, links)


def whole_numbers(call: FamilyCall, syntax: str, separator: str = ",", text: str | None = None) -> list[int]:
    """Return the arguments of `call` (or those in `text`) as ints. `syntax`: their form, for errors.

    Raises InvalidInput for anything but whole numbers of at most 18 digits.
    """
    pieces = (call.text if text is None else text).split(separator)
    way_out = f"write {syntax}"
    if not all(re.fullmatch("[0-9]+", piece) for piece in pieces):
        if not call.text:
            raise InvalidInput(f"{call.name} needs arguments", "", way_out)
        raise InvalidInput(f"the arguments of {call.name} must be whole numbers", str(call), way_out)
    if max(map(len, pieces)) > _MAX_DIGITS:
        raise InvalidInput(f"a number must have at most {_MAX_DIGITS} digits", str(call), way_out)
    return [int(piece) for piece in pieces]


def fixed_numbers(call: FamilyCall, syntax: str, count: int) -> list[int]:
    """Return the arguments of `call`, which must be exactly `count` whole numbers."""
    numbers = whole_numbers(call, syntax)
    if len(numbers) != count:
        plural = "one whole number" if count == 1 else f"{count} whole numbers"
        raise InvalidInput(f"{call.name} must have {plural}", str(call), f"write {syntax}")
    return numbers


def require(holds: bool, rule: str, call: FamilyCall | FunctionCall, way_out: str) -> None:
    """Unless `holds` is true, raise InvalidInput with the violated `rule` and the hint `way_out`."""
    if not holds:
        raise InvalidInput(rule, str(call), way_out)
