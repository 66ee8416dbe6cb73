"""All shapes of grids of a given number of nodes."""

from typing import Any

import pytest


def shapes(nodes: int, least: int = 2) -> list[tuple[int, ...]]:
    """Return all ways to write `nodes` as a product of sizes >= `least`, sizes rising."""
    found: list[tuple[int, ...]] = [(nodes,)] if nodes >= least else []
    for size in range(least, int(nodes**0.5) + 1):
        if nodes % size == 0:
            found += [(size, *rest) for rest in shapes(nodes // size, size)]
    return found


def torus_specs(nodes: int) -> list[str]:
    """Return the specs of all tori of `nodes` nodes, up to the order of dimensions (which alternates)."""
    sizes = [shape if number % 2 else shape[::-1] for number, shape in enumerate(shapes(nodes))]
    return ["torus:" + "x".join(map(str, shape)) for shape in sizes]


def node_counts(least: int) -> list[Any]:
    """Return the parameters `least` to 64; those above 24 that are not 27, 32 or 36 are slow tests."""
    often = {*range(least, 25), 27, 32, 36}
    return [pytest.param(nodes, marks=() if nodes in often else (pytest.mark.slow,)) for nodes in range(least, 65)]
