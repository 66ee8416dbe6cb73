"""How nodes of a network are drawn."""

from __future__ import annotations

from typing import Any

import numpy as np

from chorale.synth.topology.topology import Topology
from chorale.tuner.plots.layout import Positions

COMPUTE_COLOUR = "#2b6cb0"
SWITCH_COLOUR = "#c05621"
BEHIND_TEXT = {"boxstyle": "round,pad=0.12", "facecolor": "white", "edgecolor": "none", "alpha": 0.85}
_NODE_SHARE = 0.46  # of the distance to the nearest node


def draw_nodes(axes: Any, topology: Topology, positions: Positions, unit_in: float) -> None:
    """Draw compute nodes as discs and switches as squares, with their names where these can be read.

    `unit_in`: inches of a unit of `places`.
    """
    diameter_pt = _NODE_SHARE * unit_in * 72
    compute, switches = positions[: topology.compute_count], positions[topology.compute_count :]
    style = {"s": diameter_pt**2, "linewidths": 0.08 * diameter_pt, "edgecolors": "white", "zorder": 4}
    axes.scatter(*compute.T, color=COMPUTE_COLOUR, **style)
    axes.scatter(*switches.T, color=SWITCH_COLOUR, marker="s", **style)
    axes.update_datalim(np.concatenate([positions.min(axis=0) - 0.4, positions.max(axis=0) + 0.4]).reshape(2, 2))
    axes.autoscale_view()
    if diameter_pt >= 9:
        _draw_names(axes, topology, positions, diameter_pt)


def _draw_names(axes: Any, topology: Topology, places: Positions, diameter_pt: float) -> None:
    """Write short names into the nodes, long ones below."""
    for name, (x, y) in zip(topology.node_ids, places, strict=True):
        if len(name) <= 4:
            inside = {"ha": "center", "va": "center_baseline", "color": "white", "in_layout": False, "zorder": 5}
            axes.text(x, y, name, fontsize=min(9.0, diameter_pt * 0.95 / max(2, len(name))), **inside)
        else:
            below = {"ha": "center", "va": "top", "bbox": BEHIND_TEXT, "zorder": 5}
            axes.text(x, y - 0.66 * _NODE_SHARE, name[:14], fontsize=6.5, **below)
