"""HammingMesh: boards of nodes whose rows and columns meet in switches."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from chorale.synth.topology.families.unit import Arcs, bidirectional_arcs
from chorale.synth.topology.grammar import FamilyCall
from chorale.synth.topology.links import Links
from chorale.synth.topology.registry import Family, TopologyPlan, require, whole_numbers
from chorale.synth.topology.topology import Topology

_SYNTAX = "hxmesh:b,XxY"

Grid = NDArray[np.int64]


def plan_hxmesh(call: FamilyCall) -> TopologyPlan:
    """HammingMesh: X x Y boards of b x b nodes; inside a board a mesh, outside it a switch per row and column of nodes.

    The nodes form a grid of X b rows and Y b columns, ranked row by row. The first and last node of a board in each
    row are linked with the switch of that row of nodes (`row:I`), those in each column with the switch of that
    column (`column:J`), all links both ways and of capacity 1; a switch stands for a fat tree without contention.
    With b = 1 a node has two parallel links to its row and column, and the network behaves as a HyperX. Where there
    is one board only in a direction, there is nothing to join and no switch. Compute nodes have degree 4 for
    X, Y >= 2; diameter 2 b - 2 within a board; reverse-symmetric. BFB does not run on switches.
    Source: Hoefler et al., "HammingMesh: a network topology for large-scale deep learning", 2022.
    """
    board_text, _, shape_text = call.text.partition(",")
    (b,) = whole_numbers(call, _SYNTAX, text=board_text)
    boards = whole_numbers(call, _SYNTAX, separator="x", text=shape_text)
    way_out = f"write {_SYNTAX} such as hxmesh:2,4x4"
    require(len(boards) == 2, "hxmesh must have two numbers of boards, XxY", call, way_out)
    require(b >= 1 and min(boards) >= 1, "hxmesh:b,XxY must have b, X and Y >= 1", call, way_out)
    rows, columns = (b * count for count in boards)
    require(rows * columns >= 2, "hxmesh must have at least two nodes", call, way_out)
    nodes, links = rows * columns, 0
    for lines, boards_in_line in ((rows, boards[1]), (columns, boards[0])):
        joined = boards_in_line > 1
        nodes += lines if joined else 0
        links += lines * boards_in_line * (2 * (b - 1) + (4 if joined else 0))
    return TopologyPlan(str(call), nodes, links, lambda: _hxmesh(str(call), b, rows, columns))


def _hxmesh(spec: str, b: int, rows: int, columns: int) -> Topology:
    rank = np.arange(rows * columns).reshape(rows, columns)
    ids = list(map(str, range(rank.size)))
    arcs: list[Arcs] = []
    for name, grid in (("row", rank), ("column", rank.T)):
        arcs += _mesh_links(grid, b)
        if grid.shape[1] > b:
            arcs += _switch_links(grid, b, first_switch=len(ids))
            ids += [f"{name}:{index}" for index in range(len(grid))]
    src, dst = (np.concatenate(ends) for ends in zip(*arcs, strict=True))
    return Topology(spec=spec, node_ids=tuple(ids), compute_count=rank.size, links=Links.of_unit_capacity(src, dst))


def _mesh_links(grid: Grid, b: int) -> list[Arcs]:
    """Return the links between neighbours in the rows of `grid` that share a board."""
    left = np.flatnonzero(np.arange(grid.shape[1] - 1) % b != b - 1)
    return bidirectional_arcs(grid[:, left].ravel(), grid[:, left + 1].ravel())


def _switch_links(grid: Grid, b: int, first_switch: int) -> list[Arcs]:
    """Return the links between both ends of every board in the rows of `grid` and the switch of the row."""
    ends = np.concatenate([grid[:, ::b], grid[:, b - 1 :: b]], axis=1)
    switch = np.repeat(first_switch + np.arange(len(grid)), ends.shape[1])
    return bidirectional_arcs(ends.ravel(), switch)


HAMMINGMESH_FAMILIES = (
    Family("hxmesh", _SYNTAX, "hxmesh:2,2x2", "HammingMesh: boards of b x b nodes, a switch per row", plan_hxmesh),
)
