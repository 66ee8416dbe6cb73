"""Small finite groups as arithmetic on ranks: semidirect products of cyclic groups."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Elements = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SemidirectProduct:
    """Z_m and Z_k joined by r, times Z_l: (a, b, c) (a', b', c') = (a + r^b a', b + b', c + c').

    Elements are numbered (a k + b) l + c; the identity is 0. It is a group if and only if r^k = 1 modulo m.
    """

    m: int
    k: int
    r: int
    l: int = 1  # noqa: E741 - the letter that files and specs use

    @property
    def order(self) -> int:
        return self.m * self.k * self.l

    @property
    def is_group(self) -> bool:
        return min(self.m, self.k, self.l) >= 1 and pow(self.r, self.k, self.m) == 1 % self.m

    @property
    def generating_set(self) -> tuple[int, ...]:
        """Elements that generate the whole group: one of each cyclic factor that is not trivial."""
        factors = ((self.m, self.k * self.l), (self.k, self.l), (self.l, 1))
        return tuple(element for size, element in factors if size > 1)

    def product(self, left: Elements, right: Elements) -> Elements:
        """Return `left` times `right`, element by element."""
        a, b, c = self._coordinates(left)
        a_right, b_right, c_right = self._coordinates(right)
        powers = np.array([pow(self.r, exponent, self.m) for exponent in range(self.k)], dtype=np.int64)
        a_product = (a + powers[b] * a_right) % self.m
        ranks: Elements = (a_product * self.k + (b + b_right) % self.k) * self.l + (c + c_right) % self.l
        return ranks

    def _coordinates(self, elements: Elements) -> tuple[Elements, Elements, Elements]:
        rest, c = np.divmod(elements, self.l)
        a, b = np.divmod(rest, self.k)
        return a, b, c
