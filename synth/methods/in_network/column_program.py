"""Column generation: the best rates of trees under limits, to which trees are added while one is cheap enough.

The linear program has a row per limit (of a link, of an adder) and a column per tree, with how often the tree uses it.
Its multipliers are prices; a tree that costs less than what its rate earns improves it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import islice
from typing import Generic, TypeVar

import numpy as np

from chorale.synth.bounds.exact_vertex import exact_vertex
from chorale.synth.linear_program import minimum
from chorale.synth.sparse_matrix import Floats, SparseMatrix, of_entries

Column = dict[int, int]
"""By row of the program, how often a tree uses what the row limits."""
Item = TypeVar("Item")

_MOST_AT_ONCE = 12
_GAIN = 1e-7


@dataclass(slots=True, eq=False)
class ColumnProgram(Generic[Item]):
    """bound: of each row;  items, columns: trees, and what they use;  best: whether all trees were compared at the end
    offers: (prices of rows, whether to compare all) -> trees with their costs and columns
    """

    bound: Sequence[Fraction]
    offers: Callable[[Floats, bool], Iterable[tuple[float, Item, Column]]]
    compares_all: bool
    items: list[Item] = field(default_factory=list)
    columns: list[Column] = field(default_factory=list)
    is_best: bool = False

    def solved(self, enough: float, rounds: int) -> tuple[Floats, Floats]:
        """Return (rate of each item, price of each row), as good as `enough` or the best after so many rounds."""
        widths = np.array([float(value) for value in self.bound])
        scale = widths.max()
        self._add_cheap(1.0 / widths, np.inf, thorough=False)
        for _ in range(rounds):
            matrix = column_matrix(self.columns, len(widths))
            point, marginals = minimum(-np.ones(len(self.items)), matrix, widths / scale, "use trees of ranks alone")
            point, prices = np.maximum(0.0, point) * scale, np.maximum(0.0, -marginals)
            if point.sum() >= enough * (1 - 1e-9):
                return point, prices
            if self._add_cheap(prices, 1 - _GAIN, thorough=False):
                continue
            if not self.compares_all or not self._add_cheap(prices, 1 - _GAIN, thorough=True):
                self.is_best = self.compares_all
                return point, prices
        return np.pad(point, (0, len(self.items) - len(point))), prices

    def _add_cheap(self, prices: Floats, below: float, thorough: bool) -> bool:
        """Add the cheapest trees that cost less than `below`; return whether there is a new one."""
        cheap = sorted((each for each in self.offers(prices, thorough) if each[0] < below), key=lambda each: each[0])
        is_new = False
        for _, item, column in islice(cheap, _MOST_AT_ONCE):
            if column not in self.columns:
                self.items.append(item)
                self.columns.append(column)
                is_new = True
        return is_new

    def exact_rates(self, point: Floats) -> list[Fraction]:
        """Return rates that fit exactly: the vertex near `point`, or `point` rounded and slowed down."""
        rates = exact_vertex(column_matrix(self.columns, len(self.bound)), self.bound, point)
        if rates is None or sum(rates) < Fraction(float(point.sum())) * (1 - Fraction(1, 10**6)):
            rates = [Fraction(value).limit_denominator(2**17) for value in point.tolist()]
        load = [Fraction(0)] * len(self.bound)
        for rate, column in zip(rates, self.columns, strict=True):
            for row, count in column.items():
                load[row] += rate * count
        excess = max(value / width for value, width in zip(load, self.bound, strict=True))
        return [rate / max(Fraction(1), excess) for rate in rates]


def column_matrix(columns: Sequence[Column], rows: int) -> SparseMatrix:
    """Return float64[rows, columns]."""
    entries = [(row, index, count) for index, column in enumerate(columns) for row, count in column.items()]
    row, column, value = (np.array(part) for part in zip(*entries, strict=True))
    return of_entries(row, column, value, rows, len(columns))
