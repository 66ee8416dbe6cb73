"""Which of several optimal packings is preferred: low trees, few trees, or both in balance."""

from __future__ import annotations

from typing import Literal

from chorale.synth.forest.network import ForestNetwork
from chorale.synth.forest.trees import Trees, tree_heights

Objective = Literal["height", "trees", "balanced"]


def objective_key(network: ForestNetwork, trees: Trees, objective: Objective) -> tuple[int, ...]:
    """Return numbers of which the smaller is better, the first that differs decides.

    height:   the greatest height, the heights added up by weight, the number of trees
    trees:    the number of trees, then as for height
    balanced: greatest height times number of trees, then as for height
    """
    heights = tree_heights(trees, network.src)
    highest, count = int(heights.max(initial=0)), len(trees)
    low = (highest, int((heights * trees.weight).sum()), count)
    return {"height": low, "trees": (count, *low), "balanced": (highest * count, *low)}[objective]
