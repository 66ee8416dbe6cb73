"""Hamiltonian cycles that share no link and together use every port."""

from __future__ import annotations

from math import gcd

import numpy as np
from numpy.typing import NDArray

from chorale.synth.errors import InvalidInput
from chorale.synth.rings.cycle import hamiltonian_cycle
from chorale.synth.topology.families.baselines import shifted_stride
from chorale.synth.topology.grammar import FamilyCall, parse_spec
from chorale.synth.topology.grid import grid_shape
from chorale.synth.topology.topology import Topology

Order = NDArray[np.int64]


def disjoint_cycles(topology: Topology) -> list[Order]:
    """Return orders of ranks, each a Hamiltonian cycle; no link (either direction) is in two of them.

    Two on a torus of r x c nodes (r, c >= 3) where r = c k for a whole k and gcd(r, c - 1) = 1, or the same with r
    and c exchanged: the condition of the Swing paper, section 2.3.1; also on grids with more links, such as HyperX,
    or whose rows and columns close over switches, as in HammingMesh. Two on shiftedring:m, one on networks of
    degree 2 such as rings. Raises InvalidInput for others. O(links).
    """
    shape = grid_shape(topology)
    if len(shape) == 2 and min(shape) >= 3:
        cycles = _of_torus(topology, shape[0], shape[1])
        return cycles if topology.switch_count or _are_linked(topology, cycles) else _refuse(topology)
    if (tree := _family(topology)) is not None and tree.name == "shiftedring":
        ranks = topology.compute_count
        return [np.arange(ranks), np.arange(ranks) * shifted_stride(ranks) % ranks]
    cycle = hamiltonian_cycle(topology) if topology.degree in (1, 2) and not topology.switch_count else None
    return _refuse(topology) if cycle is None else [cycle.astype(np.int64)]


def torus_has_disjoint_cycles(rows: int, columns: int) -> bool:
    """Whether the construction for a torus of rows x columns works: rows = columns k, gcd(rows, columns - 1) = 1."""
    return rows % columns == 0 and gcd(rows, columns - 1) == 1


def _family(topology: Topology) -> FamilyCall | None:
    try:
        tree = parse_spec(topology.spec)
    except InvalidInput:
        return None
    return tree if isinstance(tree, FamilyCall) else None


def _of_torus(topology: Topology, rows: int, columns: int) -> list[Order]:
    if torus_has_disjoint_cycles(rows, columns):
        return [along * columns + across for along, across in _pair(rows, columns)]
    if torus_has_disjoint_cycles(columns, rows):
        return [across * columns + along for along, across in _pair(columns, rows)]
    return _refuse(topology)


def _are_linked(topology: Topology, cycles: list[Order]) -> bool:
    """Whether all hops of `cycles` are links."""
    ranks = topology.compute_count
    hops = np.concatenate([cycle * ranks + np.roll(cycle, -1) for cycle in cycles])
    return bool(np.isin(hops, topology.links.src.astype(np.int64) * ranks + topology.links.dst).all())


def _pair(rows: int, columns: int) -> list[tuple[Order, Order]]:
    """Return two cycles as (row, column) of each node in turn.

    The first runs through a row but for its last hop, goes down a row and on. The second goes down a column as far
    as it is free, columns - 1 hops, and takes the hop of the row that the first left out: it moves columns - 1 rows
    down and one column on, so it meets every row before it returns if gcd(rows, columns - 1) = 1.
    """
    turn, place = np.divmod(np.arange(rows * columns), columns)
    return [(turn, (place - turn) % columns), ((turn * (columns - 1) + place) % rows, turn % columns)]


def _refuse(topology: Topology) -> list[Order]:
    rule = "edge-disjoint Hamiltonian rings need a torus of r x c nodes (r, c >= 3) with r = c k and gcd(r, c - 1) = 1"
    raise InvalidInput(rule, topology.spec, "use biring or bucket")
