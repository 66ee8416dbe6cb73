"""A network as the ground on which loads and trees are drawn: one arc for all links from one node to another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from matplotlib.collections import LineCollection, PolyCollection
from numpy.typing import NDArray

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.topology import Topology
from chorale.tuner.plots.connections import DrawnConnection, arrow_head, curves_of
from chorale.tuner.plots.layout import Positions, node_positions
from chorale.tuner.plots.nodes import draw_nodes

MAX_ARCS = 20_000
IDLE_COLOUR = "0.86"
_WIDEST_IN, _NARROWEST_IN = 7.5, 3.0


@dataclass(frozen=True, slots=True, eq=False)
class NetworkCanvas:
    """Where everything is drawn.

    of_link: int64[links]: the arc of each link, -1 for a self-loop
    curves:  float64[points, 2] of each arc, in its direction; those there and back lie side by side
    unit_in: inches of a unit of the picture
    """

    topology: Topology
    positions: Positions
    arc_of_link: NDArray[np.int64]
    curves: list[Positions]
    unit_in: float

    @staticmethod
    def of(topology: Topology) -> NetworkCanvas:
        """Return the ground for `topology`; InvalidInput for more arcs than can be told apart."""
        links = topology.links
        key = links.src.astype(np.int64) * topology.node_count + links.dst
        pairs = np.unique(key[links.src != links.dst])
        if len(pairs) > MAX_ARCS:
            value = f"{len(pairs)} in {topology.spec}"
            raise InvalidInput(f"a drawing must have at most {MAX_ARCS} pairs of linked nodes", value, "draw a part")
        of_link = np.where(links.src == links.dst, -1, np.searchsorted(pairs, key))
        places = node_positions(topology)
        ends = (divmod(pair, topology.node_count) for pair in pairs.tolist())
        arcs = [DrawnConnection(src, dst, Fraction(1), 1, one_way=True) for src, dst in ends]
        curves = curves_of(arcs, places)
        spread = np.ptp(np.concatenate([places, *curves]), axis=0) + 1.0
        return NetworkCanvas(topology, places, of_link, curves, float(np.clip(_WIDEST_IN / spread.max(), 0.05, 0.75)))

    @property
    def size_in(self) -> tuple[float, float]:
        """Width and height of the picture."""
        spread = np.ptp(np.concatenate([self.positions, *self.curves]), axis=0) + 1.0
        width, height = np.clip(spread * self.unit_in, _NARROWEST_IN, None)
        return float(width), float(height)

    def busiest_of_arcs(self, of_links: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return for each arc the largest value of its parallel links."""
        largest = np.zeros(len(self.curves))
        real = self.arc_of_link >= 0
        np.maximum.at(largest, self.arc_of_link[real], of_links[real])
        return largest

    def draw(self, axes: Any, colours: Sequence[Any] | NDArray[Any], used: NDArray[np.bool_]) -> None:
        """Draw all arcs: those in use in their colour with an arrow head, the others thin and grey; then the nodes."""
        axes.set_aspect("equal")
        axes.axis("off")
        wide = float(np.clip(3.2 * self.unit_in, 0.6, 2.4))
        order = np.argsort(used, kind="stable").tolist()
        lines = LineCollection(
            [self.curves[arc] for arc in order],
            colors=[colours[arc] if used[arc] else IDLE_COLOUR for arc in order],
            linewidths=[wide if used[arc] else 0.5 * wide for arc in order],
            zorder=1,
        )
        axes.add_collection(lines, autolim=True)
        busy = np.flatnonzero(used).tolist()
        heads = [arrow_head(self.curves[arc], 0.26, 0.2) for arc in busy]
        axes.add_collection(PolyCollection(heads, facecolors=[colours[arc] for arc in busy], zorder=2), autolim=False)
        draw_nodes(axes, self.topology, self.positions, self.unit_in)
