"""Values as bytes on their way between processes of a campaign, of which programs are most of all."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

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
