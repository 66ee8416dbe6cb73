"""A maximum matching of two sides of a graph: the algorithm of Hopcroft and Karp (1973), the same on every machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

_FAR = -1
"""Level of what no path has come to."""


def maximum_matching(choices: Sequence[Sequence[int]], right_count: int) -> list[int | None]:
    """Return the vertex on the right, among its `choices`, of each on the left; None for those that are left over.

    Deterministic: earlier vertices and earlier choices come first. O(choices * sqrt(vertices)).
    """
    search = _Search(choices, [None] * len(choices), [None] * right_count)
    while search.find_levels():
        for left, right in enumerate(search.right_of):
            if right is None:
                search.augment(left)
    return search.right_of


@dataclass(slots=True)
class _Search:
    """A matching that grows: `right_of` and `left_of` are each other's inverse."""

    choices: Sequence[Sequence[int]]
    right_of: list[int | None]
    left_of: list[int | None]
    levels: list[int] = field(default_factory=list)
    last: int = _FAR
    """Level of the vertices on the left that a free one on the right is next to."""

    def find_levels(self) -> bool:
        """Count how often paths from free vertices on the left have come back there; whether one ends at a free one."""
        self.levels = [_FAR if right is not None else 0 for right in self.right_of]
        self.last = _FAR
        reached = [left for left, right in enumerate(self.right_of) if right is None]
        for left in reached:  # grows
            if self.last != _FAR and self.levels[left] >= self.last:
                break
            for right in self.choices[left]:
                before = self.left_of[right]
                if before is None:
                    self.last = self.levels[left] if self.last == _FAR else self.last
                elif self.levels[before] == _FAR:
                    self.levels[before] = self.levels[left] + 1
                    reached.append(before)
        return self.last != _FAR

    def augment(self, first: int) -> None:
        """Match `first` along a shortest path, if paths of this round have left one."""
        came_from: dict[int, int] = {}
        stack = [first]
        while stack:
            left = stack.pop()
            for right in self.choices[left]:
                before = self.left_of[right]
                if before is None and self.levels[left] == self.last:
                    self._follow(first, left, right, came_from)
                    return
                if before is not None and self.levels[left] != _FAR and self.levels[before] == self.levels[left] + 1:
                    came_from[before] = left
                    stack.append(before)

    def _follow(self, first: int, left: int, right: int, came_from: dict[int, int]) -> None:
        """Match each vertex on the path that ends at `left` and `right` to the next; it is on no other of the round."""
        while True:
            freed = self.right_of[left]
            self.right_of[left], self.left_of[right] = right, left
            self.levels[left] = _FAR
            if left == first:
                return
            assert freed is not None
            left, right = came_from[left], freed
