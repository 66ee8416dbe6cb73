"""A transversal of a group of symmetries: for every compute node, one symmetry that takes node 0 to it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.topology import Topology


@dataclass(frozen=True, slots=True, eq=False)
class Transversal:
    """A Schreier tree from node 0: node v is the image of `parent[v]` under move `move[v]`.

    moves:  int32[moves, N], the generators, then the inverses of those that are not their own inverse
    layers: nodes by depth in the tree, from node 0 on; within a layer in order of the move that reached them

    Only generators and the tree are stored; a symmetry is composed on request. Any generators that
    take node 0 to every node will do: nothing here needs each node to have one symmetry only.
    Source: Seress, "Permutation Group Algorithms", section 4.1 (Schreier trees).
    """

    moves: NDArray[np.int32]
    parent: NDArray[np.int32]
    move: NDArray[np.int32]
    layers: tuple[NDArray[np.int32], ...]

    @staticmethod
    def of(topology: Topology) -> Transversal:
        """Return the transversal of the symmetries that `topology` carries, which are not checked here.

        Breadth first, moves in their order, so the same topology gives the same tree. O(generators * N). Raises
        InvalidInput for switches, and unless the symmetries take rank 0 to every rank.
        """
        nodes = topology.compute_count
        moves = _moves(topology)
        parent, move = np.full(nodes, -1, dtype=np.int32), np.full(nodes, -1, dtype=np.int32)
        reached = np.zeros(nodes, dtype=bool)
        reached[0] = True
        layers = [np.zeros(1, dtype=np.int32)]
        while len(layers[-1]):
            new_nodes = []
            for index, permutation in enumerate(moves):
                images = permutation[layers[-1]]
                fresh = ~reached[images]
                reached[images] = True
                parent[images[fresh]], move[images[fresh]] = layers[-1][fresh], index
                new_nodes.append(images[fresh])
            layers.append(np.concatenate(new_nodes))
        if not reached.all():
            value = f"{topology.spec}, whose known symmetries take rank 0 to {int(reached.sum())} of {nodes} ranks"
            raise InvalidInput("the symmetric form needs a vertex-transitive topology", value, "use the column form")
        return Transversal(moves, parent, move, tuple(layers[:-1]))

    def element(self, rank: int) -> NDArray[np.int32]:
        """Return int32[N]: the symmetry that takes node 0 to `rank`, image by node. O(depth * N)."""
        path = []
        while rank != 0:
            path.append(self.move[rank])
            rank = int(self.parent[rank])
        permutation = np.arange(len(self.parent), dtype=np.int32)
        for index in reversed(path):
            permutation = self.moves[index][permutation]
        return permutation

    def images(self, points: NDArray[np.integer]) -> NDArray[np.int32]:
        """Return int32[N, points]: row v holds the images of `points` under `element(v)`. O(N * points)."""
        result = np.empty((len(self.parent), len(points)), dtype=np.int32)
        result[0] = points
        for layer in self.layers[1:]:
            result[layer] = self.moves[self.move[layer][:, None], result[self.parent[layer]]]
        return result


def _moves(topology: Topology) -> NDArray[np.int32]:
    """Return the generators and the inverses that differ from them."""
    nodes = topology.compute_count
    if topology.switch_count or not topology.automorphisms:
        rule = "the symmetric form needs known symmetries and no switches"
        raise InvalidInput(rule, topology.spec, "use the column form")
    inverses = [np.argsort(generator).astype(np.int32) for generator in topology.automorphisms]
    pairs = zip(topology.automorphisms, inverses, strict=True)
    others = [inverse for generator, inverse in pairs if not np.array_equal(generator, inverse)]
    return np.array([*topology.automorphisms, *others], dtype=np.int32).reshape(-1, nodes)
