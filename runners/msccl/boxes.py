"""How many ranks share a machine."""

from __future__ import annotations

from collections import Counter

from chorale.synth.topology.topology import Topology


def gpus_per_machine(topology: Topology) -> int | None:
    """Return how many ranks share a box where the ids of nodes say so (`BOX.GPU`, boxes alike), else None."""
    boxes = Counter(name.rpartition(".")[0] for name in topology.node_ids[: topology.compute_count])
    sizes = set(boxes.values())
    return sizes.pop() if len(sizes) == 1 and "" not in boxes else None
