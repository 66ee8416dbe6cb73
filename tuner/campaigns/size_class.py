"""Size classes: one best schedule per power of two of the vector's bytes."""

from __future__ import annotations

from dataclasses import dataclass

from chorale.runners.api.units import format_size


@dataclass(frozen=True, slots=True, order=True)
class SizeClass:
    """Vectors of 2^exponent to 2^(exponent + 1) - 1 bytes."""

    exponent: int

    @staticmethod
    def of(size_bytes: int) -> SizeClass:
        """Return the class that `size_bytes` (at least 1) belongs to."""
        return SizeClass(size_bytes.bit_length() - 1)

    @property
    def min_bytes(self) -> int:
        return 1 << self.exponent

    @property
    def max_bytes(self) -> int:
        return (2 << self.exponent) - 1

    def distance(self, other: SizeClass) -> int:
        """Return how many powers of two lie between."""
        return abs(self.exponent - other.exponent)

    def __str__(self) -> str:
        return format_size(self.min_bytes)
