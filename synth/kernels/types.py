"""Types of values in kernels, read from the annotations of Python: numbers, arrays, records and tuples.

Inside a kernel an array has as many axes as its annotation says, one where that is `NDArray`.
"""

from __future__ import annotations

import itertools
import re
import types
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T", bound=np.generic)

Matrix = np.ndarray[tuple[int, int], np.dtype[T]]
"""An array of two axes in the annotation of a kernel: `Matrix[np.int64]`."""
Table = np.ndarray[tuple[int, int, int], np.dtype[T]]
"""An array of three axes in the annotation of a kernel."""


class TranslationError(Exception):
    """A kernel uses what the translation does not know; the message ends with the line where that is known."""


def symbol_of(function: Callable[..., Any], number: int) -> str:
    """Return the name in C++ of `function`, with variant `number` of its types."""
    module = function.__module__.removeprefix("chorale.synth.")
    return re.sub(r"\W", "_", f"{module}__{function.__name__}") + (f"_{number}" if number else "")


CPP_ELEMENTS = {
    "bool": "bool",
    "int8": "std::int8_t",
    "uint8": "std::uint8_t",
    "int16": "std::int16_t",
    "uint16": "std::uint16_t",
    "int32": "std::int32_t",
    "uint32": "std::uint32_t",
    "int64": "Integer",
    "uint64": "Word",
    "float64": "double",
}
"""NumPy's name of an element -> the type that C++ stores it in."""


@dataclass(frozen=True, slots=True)
class Scalar:
    """A number by itself: what is narrower than 64 bits in an array is a signed integer of 64 bits outside."""

    name: str

    @property
    def cpp(self) -> str:
        return CPP_ELEMENTS[self.name]


BOOL, INTEGER, WORD, REAL = Scalar("bool"), Scalar("int64"), Scalar("uint64"), Scalar("float64")


@dataclass(frozen=True, slots=True)
class Nothing:
    """What a function without a result returns."""

    cpp: str = "void"


@dataclass(frozen=True, slots=True)
class ArrayType:
    """element: NumPy's name. strided: whether elements may have gaps between them (one axis only)."""

    element: str
    axes: int = 1
    strided: bool = False

    @property
    def cpp(self) -> str:
        element = CPP_ELEMENTS[self.element]
        return f"Strided<{element}>" if self.strided else f"Array<{element}, {self.axes}>"

    @property
    def value(self) -> Scalar:
        """The type of an element that was read."""
        return scalar_of(self.element)


@dataclass(frozen=True, slots=True)
class RecordType:
    """A NamedTuple: fields as (name, type)."""

    name: str
    fields: tuple[tuple[str, Type], ...]

    @property
    def cpp(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class TupleType:
    items: tuple[Type, ...]

    @property
    def cpp(self) -> str:
        return f"std::tuple<{', '.join(item.cpp for item in self.items)}>"


Type = Scalar | ArrayType | RecordType | TupleType | Nothing


def scalar_of(element: str) -> Scalar:
    """Return the type of a number that is read from an array with such elements."""
    named = Scalar(element)
    return named if named in (BOOL, WORD, REAL) else INTEGER


def union_of(first: Type, second: Type) -> Type:
    """Return the type of a variable that is both: of numbers the wider one. TranslationError if there is none."""
    if first == second:
        return first
    if isinstance(first, Scalar) and isinstance(second, Scalar):
        return wider(first, second)
    raise TranslationError(f"one variable is {first.cpp} and {second.cpp}")


def wider(first: Scalar, second: Scalar) -> Scalar:
    """Return the type in which two numbers are added."""
    order = (BOOL, INTEGER, WORD, REAL)
    result = order[max(order.index(first), order.index(second))]
    if {first, second} == {INTEGER, WORD}:
        raise TranslationError("a signed and an unsigned number meet: convert one of them")
    return result


_SCALARS: dict[Any, Scalar] = {bool: BOOL, int: INTEGER, float: REAL, np.bool_: BOOL, np.uint64: WORD} | {
    kind: INTEGER for kind in (np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32)
}


def variants(annotations: list[Any]) -> Iterator[list[Type]]:
    """Return the types of `annotations`; for each union of arrays once with every alternative, all equal ones alike."""
    unions = list(dict.fromkeys(one for one in annotations if _is_union(one)))
    for chosen in itertools.product(*(typing.get_args(union) for union in unions)):
        concrete = dict(zip(unions, chosen, strict=True))
        yield [type_of(concrete.get(one, one) if _is_union(one) else one) for one in annotations]


def _is_union(annotation: Any) -> bool:
    return isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union


def type_of(annotation: Any) -> Type:
    """Return the type that a resolved annotation stands for. TranslationError if kernels have none of that kind."""
    annotation = _without_alias(annotation)
    if annotation is None or annotation is type(None):
        return Nothing()
    if annotation in _SCALARS:
        return _SCALARS[annotation]
    if is_record(annotation):
        hints = typing.get_type_hints(annotation)
        return RecordType(annotation.__name__, tuple((name, type_of(hints[name])) for name in annotation._fields))
    if typing.get_origin(annotation) is tuple:
        return TupleType(tuple(type_of(item) for item in typing.get_args(annotation)))
    if typing.get_origin(annotation) is np.ndarray:
        return _array_type(*typing.get_args(annotation))
    raise TranslationError(f"no type of kernels: {annotation}")


def _without_alias(annotation: Any) -> Any:
    """Return what an alias by Python 3.12's `type` statement stands for, such as newer NumPy's `NDArray`."""
    value = getattr(typing.get_origin(annotation), "__value__", None)
    return annotation if value is None else value[typing.get_args(annotation)]


def is_record(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, tuple) and hasattr(annotation, "_fields")


def _array_type(shape: Any, dtype: Any) -> ArrayType:
    """One axis, unless the shape says how many: `np.ndarray[tuple[int, int], np.dtype[np.int64]]`."""
    extents = typing.get_args(shape)
    axes = 1 if Ellipsis in extents or not extents else len(extents)
    [element] = typing.get_args(dtype)
    return ArrayType(np.dtype(element).name, axes)
