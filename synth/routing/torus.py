"""Dimension-ordered minimal paths on a torus, in closed form and all at once."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from chorale.synth.schedule.routes import Routes
from chorale.synth.topology.links import Links
from chorale.synth.topology.topology import Topology


@dataclass(frozen=True, slots=True, eq=False)
class TorusLinks:
    """A network that is a torus of `shape`: `forward[d][r]` and `backward[d][r]` are the links of rank r along d."""

    shape: tuple[int, ...]
    forward: tuple[NDArray[np.int64], ...]
    backward: tuple[NDArray[np.int64], ...]

    @staticmethod
    def of(topology: Topology, shape: tuple[int, ...]) -> TorusLinks | None:
        """Return the links of `topology` if it is just the torus of `shape` (one pair for a size of 2), else None."""
        ranks = topology.compute_count
        links = ranks * sum(1 if size == 2 else 2 for size in shape)
        if topology.switch_count or len(topology.links) != links:
            return None
        rank = np.arange(ranks).reshape(shape)
        ways = [[np.roll(rank, -sign, axis).ravel() for axis in range(len(shape))] for sign in (1, -1)]
        found = [[_link_ids(topology.links, ranks, rank.ravel(), end) for end in ends] for ends in ways]
        if any((link_ids < 0).any() for way in found for link_ids in way):
            return None
        return TorusLinks(shape, tuple(found[0]), tuple(found[1]))

    def paths(self, src: NDArray[np.int64], dst: NDArray[np.int64], backward_ties: bool = False) -> Routes:
        """Return the path of each pair, first dimension first, the shorter way around each.

        Where both ways are equally long it goes forward, or backward with `other_way`. O(hops).
        """
        hops, sign = zip(*(self._turns(axis, src, dst, backward_ties) for axis in range(len(self.shape))), strict=True)
        before = np.cumsum([np.zeros_like(src), *hops], axis=0)
        offsets = np.concatenate([[0], np.cumsum(before[-1])]).astype(np.int64)
        link_ids = np.empty(offsets[-1], dtype=np.int32)
        node = src
        for axis, size in enumerate(self.shape):
            stride = prod(self.shape[axis + 1 :])
            pair = np.repeat(np.arange(len(src)), hops[axis])
            done = np.arange(len(pair)) - np.repeat(np.cumsum(hops[axis]) - hops[axis], hops[axis])
            start = node[pair] // stride % size
            here = node[pair] + ((start + sign[axis][pair] * done) % size - start) * stride
            chosen = np.where(sign[axis][pair] > 0, self.forward[axis][here], self.backward[axis][here])
            link_ids[offsets[pair] + before[axis][pair] + done] = chosen
            node = node + (dst // stride % size - node // stride % size) * stride
        return Routes(offsets, link_ids)

    def _turns(
        self, axis: int, src: NDArray[np.int64], dst: NDArray[np.int64], other_way: bool
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (hops, +1 or -1) of each pair along `axis`."""
        size, stride = self.shape[axis], prod(self.shape[axis + 1 :])
        ahead = (dst // stride - src // stride) % size
        forward = 2 * ahead < size + (not other_way)
        return np.where(forward, ahead, size - ahead), np.where(forward, 1, -1)


def _link_ids(links: Links, ranks: int, src: NDArray[np.int64], dst: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the id of the first link of each pair, -1 where there is none."""
    keys = links.dst.astype(np.int64) * ranks + links.src
    wanted = dst * ranks + src
    index = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[index] == wanted, index, -1)
