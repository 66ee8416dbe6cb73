"""Values packed for actors: those that many requests share travel once, through Ray's object store."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from chorale.runners.ray.cluster import ray

Parcel = Any
"""A value as `Packed`, or Ray's reference to one. Inside a record Ray hands references on as they are."""


class SharedValues:
    """Values that were put into the object store, by identity, so that requests that hold them need not carry them."""

    def __init__(self) -> None:
        self._references: dict[int, tuple[Any, Any]] = {}  # the value too, as the id of one that is gone is used again

    def put(self, values: Iterable[Any]) -> None:
        """Put those of `values` that are not there yet."""
        for value in values:
            if id(value) not in self._references:
                self._references[id(value)] = value, ray.put(Packed.of(value))

    def parcel(self, value: Any) -> Parcel:
        """Return a reference to `value` if it was put, else `value` itself, packed."""
        shared = self._references.get(id(value))
        return Packed.of(value) if shared is None else shared[1]


class ParcelOpener:
    """Opens parcels inside an actor; what came by reference is fetched and unpacked once."""

    def __init__(self) -> None:
        self._fetched: dict[Any, Any] = {}

    def open(self, parcel: Parcel) -> Any:
        if isinstance(parcel, Packed):
            return parcel.open()
        if parcel not in self._fetched:
            packed: Any = ray.get(parcel)
            self._fetched[parcel] = packed.open()
        return self._fetched[parcel]


Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Packed(Generic[Value]):
    """A value as bytes. Ray's own pickler asks Python code about every object, which is slow where there are thousands.

    Only for processes of one program: `open` trusts what it is given.
    """

    content: bytes

    @classmethod
    def of(cls, value: Value) -> Packed[Value]:
        """Pack `value`, which must be made of types that modules define by name."""
        return cls(pickle.dumps(value, pickle.HIGHEST_PROTOCOL))

    def open(self) -> Value:
        """Return what was packed, made anew."""
        return cast(Value, pickle.loads(self.content))  # noqa: S301 (from another process of the same campaign)
