"""A call of machine code: arguments as slots of 64 bits there, results back, errors as exceptions."""

from __future__ import annotations

import ctypes
import struct
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chorale.synth.kernels.types import (
    REAL,
    WORD,
    ArrayType,
    Nothing,
    RecordType,
    Scalar,
    TupleType,
    Type,
    type_of,
)

_ERRORS: Mapping[int, type[Exception]] = {1: ValueError, 2: MemoryError, 3: IndexError}

Copies = list[tuple[NDArray[Any] | None, NDArray[Any]]]
Pack = Callable[[Any, list[Any], Copies], None]
Unpack = Callable[[Iterator[int]], Any]


@dataclass(frozen=True, slots=True)
class Libraries:
    """The library twice. releasing: whose calls release the interpreter lock; holding: whose calls keep it."""

    releasing: ctypes.CDLL
    holding: ctypes.PyDLL


def entry_of(symbol: str) -> str:
    """Return by which name the library exports a kernel."""
    return f"{symbol}_entry"


class NativeCall:
    """One kernel with one set of types."""

    def __init__(self, libraries: Libraries, symbol: str, parameters: Mapping[str, Type], result: Any) -> None:
        self._entry = getattr(libraries.releasing, entry_of(symbol))
        self._message = libraries.holding.chorale_message
        self._symbol = symbol
        self._format = struct.Struct("".join(_format(kind) for kind in parameters.values())).pack
        self._packs = [_packer(kind, name) for name, kind in parameters.items()]
        self._kinds = tuple(parameters.values())
        kind = type_of(result)
        self._results = ctypes.c_int64 * max(1, _slots(kind))
        self._unpack = _unpacker(kind, result, libraries.holding)

    def takes(self, arguments: tuple[Any, ...]) -> bool:
        """Whether all arrays among `arguments` have the elements that this variant is for."""
        pairs = zip(arguments, self._kinds, strict=False)
        return all(one.dtype.name == kind.element for one, kind in pairs if isinstance(kind, ArrayType))

    def __call__(self, arguments: tuple[Any, ...]) -> Any:
        """Run the kernel. TypeError if an argument has another type than its annotation; what the kernel raises."""
        slots: list[Any] = []
        copies: Copies = []
        try:
            for pack, argument in zip(self._packs, arguments, strict=True):
                pack(argument, slots, copies)
            packed = self._format(*slots)
        except (AttributeError, ValueError, TypeError, struct.error) as error:
            raise TypeError(f"{self._symbol}: {error}") from error
        results = self._results()
        outcome = self._entry(packed, results)
        if outcome:
            raise _ERRORS[outcome](self._message().decode())
        for original, copy in copies:
            if original is not None:
                original[...] = copy
        return self._unpack(iter(results))


def _format(kind: Type) -> str:
    """Return the slots of an argument as `struct` has them."""
    if isinstance(kind, RecordType):
        return "".join(_format(field) for _, field in kind.fields)
    if isinstance(kind, ArrayType):
        return "q" * (1 + 2 * kind.axes)
    return "d" if kind == REAL else "Q" if kind == WORD else "q"


def _slots(kind: Type) -> int:
    """Return the slots of a result: those of an array are storage, address and extents."""
    match kind:
        case RecordType():
            return sum(_slots(field) for _, field in kind.fields)
        case TupleType():
            return sum(map(_slots, kind.items))
        case ArrayType():
            return 2 + kind.axes
        case Nothing():
            return 0
        case Scalar():
            return 1


def _packer(kind: Type, name: str) -> Pack:
    """Return what appends the slots of an argument to a list."""
    if isinstance(kind, RecordType):
        packs = [_packer(field, f"{name}.{field_name}") for field_name, field in kind.fields]

        def pack_record(value: Any, slots: list[Any], copies: Copies) -> None:
            for pack, field in zip(packs, value, strict=True):
                pack(field, slots, copies)

        return pack_record
    if isinstance(kind, ArrayType):
        return _array_packer(kind, name)
    return lambda value, slots, copies: slots.append(value)


def _array_packer(kind: ArrayType, name: str) -> Pack:
    dtype, axes = np.dtype(kind.element), kind.axes
    size = dtype.itemsize

    def pack(value: NDArray[Any], slots: list[Any], copies: Copies) -> None:
        if (value.dtype is not dtype and value.dtype != dtype) or value.ndim != axes:
            raise TypeError(f"{name} is {value.dtype}[{value.ndim} axes], not {dtype}[{axes} axes]")
        if value.strides[-1] != size and value.shape[-1] > 1:  # gaps along the last axis: the kernel gets a copy
            original, value = value, np.ascontiguousarray(value)
            copies.append((original if original.flags.writeable else None, value))
        slots.append(value.__array_interface__["data"][0])
        slots += value.shape
        slots += [stride // size for stride in value.strides]

    return pack


class _Storage:
    """Memory that a kernel allocated, as long as an array in it lives."""

    __slots__ = ("__array_interface__", "_handle", "_library")

    def __init__(self, handle: int, library: ctypes.PyDLL, interface: dict[str, Any]) -> None:
        self._handle, self._library, self.__array_interface__ = handle, library, interface

    def __del__(self) -> None:
        self._library.chorale_release(self._handle)


def _unpacker(kind: Type, annotation: Any, library: ctypes.PyDLL) -> Unpack:
    """Return what reads a result of type `kind` from its slots."""
    match kind:
        case Nothing():
            return lambda slots: None
        case RecordType():
            hints = typing.get_type_hints(annotation)
            fields = [_unpacker(field, hints[name], library) for name, field in kind.fields]
            return lambda slots: annotation._make([unpack(slots) for unpack in fields])
        case TupleType():
            pairs = zip(kind.items, typing.get_args(annotation), strict=True)
            items = [_unpacker(item, part, library) for item, part in pairs]
            return lambda slots: tuple([unpack(slots) for unpack in items])
        case ArrayType():
            return _array_unpacker(kind, library)
        case Scalar():
            return {
                REAL: _real,
                WORD: lambda slots: next(slots) % 2**64,
                Scalar("bool"): lambda slots: bool(next(slots)),
            }.get(kind, next)


def _real(slots: Iterator[int]) -> float:
    number: float = struct.unpack("d", struct.pack("q", next(slots)))[0]
    return number


def _array_unpacker(kind: ArrayType, library: ctypes.PyDLL) -> Unpack:
    dtype = np.dtype(kind.element)

    def unpack(slots: Iterator[int]) -> NDArray[Any]:
        handle, address = next(slots), next(slots)
        shape = tuple([next(slots) for _ in range(kind.axes)])
        interface = {"version": 3, "shape": shape, "typestr": dtype.str, "data": (address, False)}
        return np.asarray(_Storage(handle, library, interface))

    return unpack
