"""What it means that trees are packed into a network, said slowly."""

from collections import Counter

from chorale.synth.methods.forest.network import ForestNetwork, Trees


def faults_of(network: ForestNetwork, trees: Trees) -> list[str]:
    """Return what is wrong with `trees` as a packing of `network`; nothing if all is well."""
    faults, load, rooted = [], Counter[int](), Counter[int]()
    for tree in range(len(trees)):
        root, weight = int(trees.root[tree]), int(trees.weight[tree])
        rooted[root] += weight
        if weight <= 0:
            faults.append(f"tree {tree} has weight {weight}")
        arcs = trees.parent_arc[tree].tolist()
        if arcs[root] != -1:
            faults.append(f"tree {tree} enters its root")
        for node in set(range(network.nodes)) - {root}:
            load[arcs[node]] += weight
            if arcs[node] < 0 or network.dst[arcs[node]] != node:
                faults.append(f"tree {tree} does not enter node {node}")
        if not faults:
            faults += [f"tree {tree} misses node {n}" for n in range(network.nodes) if depth_of(network, arcs, n) < 0]
    faults += [f"arc {arc} carries {load[arc]}" for arc in load if load[arc] > network.capacity[arc]]
    faults += [f"root {n} has {rooted[n]} trees" for n in range(network.nodes) if rooted[n] != network.supply[n]]
    return faults


def depth_of(network: ForestNetwork, arcs: list[int], node: int) -> int:
    """Return how many arcs lead from the root to `node`, -1 if following them back never ends."""
    depth = 0
    while arcs[node] >= 0:
        depth += 1
        node = int(network.src[arcs[node]])
        if depth > network.nodes:
            return -1
    return depth


def height_of(network: ForestNetwork, trees: Trees) -> int:
    rows = trees.parent_arc.tolist()
    return max((depth_of(network, row, node) for row in rows for node in range(network.nodes)), default=0)
