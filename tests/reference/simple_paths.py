"""Reference for planned traffic: a linear program over all simple paths of every pair. For tiny networks only."""

from collections.abc import Iterator

import numpy as np
from scipy.sparse import csr_array

from chorale.synth.linear_program import minimum
from chorale.synth.topology.topology import Topology


def least_time(topology: Topology, amounts: np.ndarray) -> float:
    """Return the least time in which every pair can send its amount, in amount / bandwidth."""
    pairs = [(s, t) for s in range(len(amounts)) for t in range(len(amounts)) if s != t and amounts[s][t]]
    paths = [(pair, path) for pair in pairs for path in simple_paths(topology, *pair)]
    links = topology.links
    matrix = np.zeros((len(links) + len(pairs), len(paths) + 1))
    for column, (pair, path) in enumerate(paths):
        matrix[path, column] += 1
        matrix[len(links) + pairs.index(pair), column] = -1
    matrix[: len(links), -1] = [-float(link.bandwidth) for link in links]
    bound = np.concatenate([np.zeros(len(links)), [-float(amounts[s][t]) for s, t in pairs]])
    objective = np.zeros(len(paths) + 1)
    objective[-1] = 1
    return float(minimum(objective, csr_array(matrix), bound, "none")[0][-1])


def simple_paths(topology: Topology, source: int, target: int) -> Iterator[list[int]]:
    """Yield the links of every path that visits no node twice."""
    links = topology.links

    def extend(node: int, path: list[int], seen: frozenset[int]) -> Iterator[list[int]]:
        if node == target:
            yield path
            return
        for link in np.flatnonzero(links.src == node).tolist():
            following = int(links.dst[link])
            if following not in seen:
                yield from extend(following, [*path, link], seen | {following})

    return extend(source, [], frozenset({source}))
