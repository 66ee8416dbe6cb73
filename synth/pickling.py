"""Pickling for classes of which there are many small instances."""

from __future__ import annotations

from dataclasses import fields
from operator import attrgetter
from typing import Any, TypeVar

Class = TypeVar("Class", bound=type)


def pickled_by_fields(cls: Class) -> Class:
    """Let instances of a dataclass with two fields or more be pickled as the class and the values of its fields.

    What frozen dataclasses with slots do by themselves asks for the fields of each instance again, which takes twice
    as long both ways.
    """
    values = attrgetter(*(one.name for one in fields(cls)))

    def reduce(self: Any) -> tuple[type, tuple[Any, ...]]:
        return cls, values(self)

    cls.__reduce__ = reduce  # type: ignore[assignment, method-assign]
    return cls
