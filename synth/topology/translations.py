"""Represents groups of translations, and transversals of groups of symmetries.

Translations are commuting symmetries; exactly one of them maps a given rank to a given other rank in its orbit.
Examples: rotations of the boxes in a cluster and of the GPUs in boxes, shifts of a torus, flips of a hypercube. A
transversal is a set with one symmetry for every compute node, which maps node 0 to that node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import prod

import numpy as np
from numpy.typing import NDArray

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.topology import Topology

Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Translations:
    """A group of translations: all products of commuting node permutations. Only the identity fixes a rank.

    Element number e stands for exponents a_1, a_2, …, its digits in mixed radix with bases `orders` (last digit
    fastest). It is the product of all generator_i to the power of a_i.

    orders:   per generator, the smallest exponent whose power is a product of earlier generators; the number of
              elements is the product of all orders
    carries:  int64[generators, generators]: row i has the exponents of the earlier generators in that product
    table:    int32[orbits, elements]: the image of the first node of each orbit under each element
    orbit:    int32 per node: number of its orbit, in the order of first nodes (orbits that contain ranks come first)
    element:  int32 per node: an element that maps the first node of the orbit to the node (unique for ranks)
    rank_orbits: number of orbits that contain ranks
    """

    orders: tuple[int, ...]
    carries: Numbers
    table: NDArray[np.int32]
    orbit: NDArray[np.int32]
    element: NDArray[np.int32]
    rank_orbits: int

    def __len__(self) -> int:
        return prod(self.orders)

    @property
    def first_ranks(self) -> NDArray[np.int32]:
        """The first rank of each orbit, ascending."""
        return self.table[: self.rank_orbits, 0]

    @staticmethod
    def of(topology: Topology, generators: Sequence[int]) -> Translations:
        """Return the group that the automorphisms of `topology` with indices `generators` generate.

        O(elements * orbits + nodes log nodes).

        Raises InvalidInput unless the symmetries commute and only the identity fixes a rank.
        """
        moves = [topology.automorphisms[index].astype(np.int64) for index in generators]
        if not all(np.array_equal(one[other], other[one]) for one, other in combinations(moves, 2)):
            raise _error(topology, "some do not commute")
        orders: list[int] = []
        carries = np.zeros((len(moves), len(moves)), dtype=np.int64)
        images = np.zeros((1, 1), dtype=np.int32)  # images of rank 0 under all elements found so far
        element_of = np.full(topology.node_count, -1)  # the element that moves rank 0 to a node
        element_of[0] = 0
        for number, move in enumerate(moves):
            image, order = int(move[0]), 1
            while element_of[image] < 0:
                image, order = int(move[image]), order + 1
            rest = int(element_of[image])
            for before in reversed(range(number)):
                rest, carries[number, before] = divmod(rest, orders[before])
            orders.append(order)
            images = _with_powers(images, move, order)
            element_of[images[0]] = np.arange(images.shape[1])
        orbit, firsts = _orbits(topology.node_count, moves, orders)
        table = firsts[:, None].astype(np.int32)
        for move, order in zip(moves, orders, strict=True):
            table = _with_powers(table, move, order)
        element = np.zeros(topology.node_count, dtype=np.int32)
        element[table[:, ::-1]] = np.arange(table.shape[1], dtype=np.int32)[::-1]
        rank_orbits = int(np.count_nonzero(firsts < topology.compute_count))
        result = Translations(tuple(orders), carries, table, orbit, element, rank_orbits)
        ranks = np.sort(table[:rank_orbits], axis=None)
        if not np.array_equal(ranks, np.arange(topology.compute_count)):
            raise _error(topology, "some keep a rank in its place")
        for move, order, carry in zip(moves, orders, carries.tolist(), strict=True):
            product = np.arange(topology.node_count)
            for other, exponent in zip(moves, carry, strict=True):
                product = _power(other, exponent)[product]
            if not np.array_equal(_power(move, order), product):
                raise _error(topology, "some keep rank 0 in its place, and move other nodes")
        return result

    def sum(self, first: NDArray[np.integer], second: NDArray[np.integer]) -> Numbers:
        """Return the products of the elements in `first` with those in `second`. Shapes are broadcast as in NumPy."""
        return self._by_exponents(np.asarray(first, dtype=np.int64), np.asarray(second, dtype=np.int64), 1)

    def negative(self, elements: NDArray[np.integer]) -> Numbers:
        return self._by_exponents(np.zeros(1, dtype=np.int64), np.asarray(elements, dtype=np.int64), -1)

    def _by_exponents(self, first: Numbers, second: Numbers, sign: int) -> Numbers:
        shape, stride = np.broadcast_shapes(first.shape, second.shape), 1
        result = np.zeros(shape, dtype=np.int64)
        carried = [np.zeros(shape, dtype=np.int64) for _ in self.orders] if self.carries.any() else None
        for number, order in reversed(list(enumerate(self.orders))):
            exponent = first // stride % order + sign * (second // stride % order)
            if carried is not None:
                exponent += carried[number]
                for before in np.flatnonzero(self.carries[number]).tolist():
                    carried[before] += exponent // order * self.carries[number, before]
            result += exponent % order * stride
            stride *= order
        return result

    def images(self, nodes: NDArray[np.integer], elements: NDArray[np.integer]) -> NDArray[np.int32]:
        """Return the images of `nodes` under the elements in `elements`. Shapes are broadcast as in NumPy."""
        images: NDArray[np.int32] = self.table[self.orbit[nodes], self.sum(self.element[nodes], elements)]
        return images


def _with_powers(table: NDArray[np.int32], move: Numbers, order: int) -> NDArray[np.int32]:
    """Return `table` with each column replaced by its `order` images under the powers 0 to `order` - 1 of `move`."""
    powers, step = table[:, :, None], move
    while powers.shape[2] < order:
        powers = np.concatenate([powers, step[powers].astype(np.int32)], axis=2)
        step = step[step]
    return powers[:, :, :order].reshape(len(table), -1)


def _orbits(count: int, moves: Sequence[Numbers], orders: Sequence[int]) -> tuple[NDArray[np.int32], Numbers]:
    """Return (int32[count]: the orbit of each point, first point of each orbit, ascending). The moves must commute."""
    first = np.arange(count)
    for move, order in zip(moves, orders, strict=True):
        reach, step = 1, move
        while reach < order:  # each point takes its smallest image among the first `reach` powers; `reach` doubles
            first, reach, step = np.minimum(first, first[step]), 2 * reach, step[step]
    firsts, orbit = np.unique(first, return_inverse=True)
    return orbit.astype(np.int32), firsts


def _power(move: Numbers, exponent: int) -> Numbers:
    result, square = np.arange(len(move)), move
    while exponent:
        if exponent % 2:
            result = square[result]
        square, exponent = square[square], exponent // 2
    return result


def _error(topology: Topology, value: str) -> InvalidInput:
    rule = "these symmetries do not commute or do not move every rank: {}"
    return InvalidInput(rule, f"symmetries of {topology.spec}: {value}", "use other symmetries, or none")


@dataclass(frozen=True, slots=True, eq=False)
class TranslatedLinks:
    """The permutation of links that each translation causes. Parallel links keep their order.

    orbit: int32 per link: number of its orbit;  sizes: int64 per orbit: number of links
    """

    topology: Topology
    translations: Translations
    orbit: NDArray[np.int32]
    sizes: Numbers
    keys: Numbers
    parallel: NDArray[np.int32]

    @staticmethod
    def of(topology: Topology, generators: Sequence[int], translations: Translations) -> TranslatedLinks:
        """Return the orbits of links under the group of `generators`. O(generators * links log links)."""
        links = topology.links
        keys = links.dst.astype(np.int64) * topology.node_count + links.src
        parallel = links.parallel_index()
        moved = []
        for index in generators:
            move = topology.automorphisms[index].astype(np.int64)
            moved.append(np.searchsorted(keys, move[links.dst] * topology.node_count + move[links.src]) + parallel)
        orbit = _orbits(len(links), moved, translations.orders)[0]
        return TranslatedLinks(topology, translations, orbit, np.bincount(orbit), keys, parallel)

    def images(self, links: NDArray[np.integer], elements: NDArray[np.integer]) -> NDArray[np.int32]:
        """Return the images of `links` under `elements`. Shapes are broadcast as in NumPy. O(results * log links)."""
        table = self.topology.links
        src = self.translations.images(table.src[links], elements).astype(np.int64)
        dst = self.translations.images(table.dst[links], elements).astype(np.int64)
        first = np.searchsorted(self.keys, dst * self.topology.node_count + src)
        return np.asarray(first + self.parallel[links], dtype=np.int32)

    def totals(self, base: Numbers) -> Numbers:
        """Return int64 per link: the sum of `base` over the links that the translations map to this link."""
        sums = np.zeros(len(self.sizes), dtype=np.int64)
        np.add.at(sums, self.orbit, base)
        totals: Numbers = sums[self.orbit] * (len(self.translations) // self.sizes[self.orbit])
        return totals


@dataclass(frozen=True, slots=True, eq=False)
class Transversal:
    """Symmetries that map node 0 to every node, as a tree: node v is the image of `parent[v]` under move `move[v]`.

    moves:  int32[moves, N], the generators, then the inverses of those that are not their own inverse
    layers: nodes by depth in the tree, starting with node 0; within a layer, in order of the move that reached them
    Only generators and the tree are stored; symmetries are composed on request. The generators can be any symmetries
    whose products map node 0 to every node; several of these products may map it to the same node.
    Source: Seress, "Permutation Group Algorithms", section 4.1 (Schreier trees).
    """

    moves: NDArray[np.int32]
    parent: NDArray[np.int32]
    move: NDArray[np.int32]
    layers: tuple[NDArray[np.int32], ...]

    @staticmethod
    def of(topology: Topology) -> Transversal:
        """Return the transversal for the known symmetries of `topology`, which are not checked here.

        The tree is built breadth-first, in the order of the moves, so the same topology gives the same tree.
        O(generators * N). Raises InvalidInput if there are switches, or if the symmetries do not map rank 0 to every
        rank.
        """
        nodes, generators = topology.compute_count, topology.automorphisms
        if topology.switch_count or not generators:
            rule = "the symmetric form needs known symmetries and no switches: {}"
            raise InvalidInput(rule, topology.spec, "use the column form")
        inverses = (np.argsort(generator).astype(np.int32) for generator in generators)
        others = (
            inverse for one, inverse in zip(generators, inverses, strict=True) if not np.array_equal(one, inverse)
        )
        moves = np.array([*generators, *others], dtype=np.int32).reshape(-1, nodes)
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
            raise InvalidInput(
                "the symmetric form needs a vertex-transitive topology: {}", value, "use the column form"
            )
        return Transversal(moves, parent, move, tuple(layers[:-1]))

    def element(self, rank: int) -> NDArray[np.int32]:
        """Return int32[N]: the image of each node under the symmetry that maps node 0 to `rank`. O(depth * N)."""
        path = []
        while rank != 0:
            path.append(self.move[rank])
            rank = int(self.parent[rank])
        permutation = np.arange(len(self.parent), dtype=np.int32)
        for index in reversed(path):
            permutation = self.moves[index][permutation]
        return permutation

    def images(self, points: NDArray[np.integer]) -> NDArray[np.int32]:
        """Return int32[N, points]: the images of `points` under `element(v)` for each node v. O(N * points)."""
        result = np.empty((len(self.parent), len(points)), dtype=np.int32)
        result[0] = points
        for layer in self.layers[1:]:
            result[layer] = self.moves[self.move[layer][:, None], result[self.parent[layer]]]
        return result
