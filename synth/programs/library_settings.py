"""Settings of a collective that a library does itself; jobs read them from tables without what programs need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from chorale.synth.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class LibrarySettings:
    """Which of its own algorithms a library is to use, and how; None: as it likes.

    algorithm, protocol: by the library's names, those of algorithms in small letters
    ctas:         channels, thread blocks of a GPU
    chunk_bytes:  of a step on a channel
    buffer_bytes: of the buffer of a channel
    threads:      of a thread block
    cta_policy:   default, efficiency or zero
    """

    algorithm: str
    protocol: str | None = None
    ctas: int | None = None
    chunk_bytes: int | None = None
    buffer_bytes: int | None = None
    threads: int | None = None
    cta_policy: str | None = None

    def to_json(self) -> dict[str, str | int]:
        """Return what is set."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> LibrarySettings:
        """Return what `to_json` gave; InvalidInput for anything else."""
        kinds = {field.name: str if field.type.startswith("str") else int for field in fields(LibrarySettings)}
        wrong = [name for name, one in value.items() if type(one) is not kinds.get(name)]
        if wrong or "algorithm" not in value or any(type(one) is int and one < 1 for one in value.values()):
            rule = f"settings of a library must be an algorithm and some of {', '.join(kinds)}"
            raise InvalidInput(rule, dict(value), "write names as text and numbers as whole ones above zero")
        return LibrarySettings(**value)

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.to_json().items())
