"""Reads the objects of a JSON document with checks; errors name the object."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from chorale.synth.errors import InvalidInput

MAX_INTEGER = 2**64 - 1


class JsonFields:
    """One JSON object that came from anywhere, and where it stands."""

    __slots__ = ("_values", "_where")

    @property
    def value(self) -> dict[str, Any]:
        """The object as it was read."""
        return self._values

    def __init__(self, value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise InvalidInput(f"{where} must be a JSON object", repr(value)[:40], "write the file again")
        self._values: dict[str, Any] = value
        self._where = where

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def text(self, name: str, default: str | None = None) -> str:
        value = self._get(name, default)
        return str(self._checked(name, "a string", value, isinstance(value, str)))

    def flag(self, name: str, default: bool | None = None) -> bool:
        value = self._get(name, default)
        return bool(self._checked(name, "true or false", value, isinstance(value, bool)))

    def integer(self, name: str, default: int | None = None, least: int = 0) -> int:
        """Return a whole number from `least` to 2^64 - 1."""
        value = self._get(name, default)
        return int(self._checked(name, f"a whole number from {least} on", value, _is_whole(value, least)))

    def integers(self, name: str, least: int = 0) -> tuple[int, ...]:
        """Return a list of whole numbers; none where it is missing."""
        values = self._list(name)
        return tuple(self._checked(name, "a list of whole numbers", value, _is_whole(value, least)) for value in values)

    def objects(self, name: str) -> Iterator[JsonFields]:
        """Return a list of objects; none where it is missing."""
        for index, value in enumerate(self._list(name)):
            yield JsonFields(value, f"{name}[{index}] of {self._where}")

    def objects_of(self, name: str) -> Iterator[JsonFields]:
        """Return the one object called `name`; none where it is missing."""
        if name in self._values:
            yield JsonFields(self._values[name], f"{name} of {self._where}")

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a list of strings; none where it is missing."""
        return tuple(
            self._checked(name, "a list of strings", value, isinstance(value, str)) for value in self._list(name)
        )

    def error(self, rule: str, value: object, way_out: str) -> InvalidInput:
        """Return the error that something about this object breaks `rule`."""
        return InvalidInput(f"{rule} ({self._where})", value, way_out)

    def _get(self, name: str, default: Any) -> Any:
        value = self._values.get(name, default)
        if value is None:
            raise InvalidInput(f"{self._where} must have {name}", "nothing", f"add {name}")
        return value

    def _list(self, name: str) -> list[Any]:
        value = self._values.get(name, [])
        checked: list[Any] = self._checked(name, "a list", value, isinstance(value, list))
        return checked

    def _checked(self, name: str, what: str, value: Any, holds: bool) -> Any:
        if not holds:
            raise InvalidInput(f"{name} of {self._where} must be {what}", repr(value)[:40], "write the file again")
        return value


def _is_whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= MAX_INTEGER
