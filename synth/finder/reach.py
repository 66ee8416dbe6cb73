"""Exact BFB loads of networks of low diameter and degree, from sets of nodes kept as bits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from chorale.synth.compiled import compiled, inlined

Words = NDArray[np.uint64]

MAX_DEGREE = 8
"""Every set of in-links is looked at: 2^degree of them."""


@inlined
def _ones(word: np.uint64) -> np.int64:
    """Return the number of bits set in `word`."""
    word -= (word >> np.uint64(1)) & np.uint64(0x5555555555555555)
    word = (word & np.uint64(0x3333333333333333)) + ((word >> np.uint64(2)) & np.uint64(0x3333333333333333))
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((word * np.uint64(0x0101010101010101)) >> np.uint64(56))


@inlined
def _hear(heard: Words, tails: NDArray[np.int32], following: Words) -> None:
    """Write who has been heard one step after `heard`: by itself or by the tail of an in-link."""
    for node in range(len(tails)):
        following[node] = heard[node]
        for link in range(tails.shape[1]):
            following[node] |= heard[tails[node, link]]


@compiled
def loads_of_low_diameter(
    tails: NDArray[np.int32], chosen: NDArray[np.int64], max_steps: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the BFB load of every step as p / q, in shards per link of capacity 1.

    tails: int32[N, degree], tails of the in-links of every node; degree <= MAX_DEGREE. `chosen`: at least one node of
    every orbit. The load of a step is the largest n(S) / |S| over chosen nodes and sets S of in-links; n(S) counts the
    shards that arrive and that only S brings (full paper, theorem 19). A shard arrives if it has not been heard before,
    and link k brings it if its tail has heard it.
    Empty arrays if the diameter is above `most_steps`. N^2 / 4 bytes, and time
    O(diameter * (degree * N + 2^degree * chosen) * N / 64).
    """
    nodes, degree = tails.shape
    words = (nodes + 63) // 64
    heard = np.zeros((nodes, words), dtype=np.uint64)
    following = np.zeros((nodes, words), dtype=np.uint64)
    for node in range(nodes):
        heard[node, node // 64] = np.uint64(1) << np.uint64(node % 64)
    left_out = np.zeros((2**degree, words), dtype=np.uint64)
    top, bottom = np.zeros(max_steps, dtype=np.int64), np.ones(max_steps, dtype=np.int64)
    for step in range(max_steps):
        _hear(heard, tails, following)
        missing = np.int64(0)
        for node in chosen:
            _raise_load(node, heard, following, tails, left_out, top[step : step + 1], bottom[step : step + 1])
            for word in range(words):
                missing += 64 - _ones(following[node, word])
        if missing == len(chosen) * (64 * words - nodes):
            return top[: step + 1], bottom[: step + 1]
        heard, following = following, heard
    return top[:0], bottom[:0]


@inlined
def _raise_load(
    node: int,
    heard: Words,
    following: Words,
    tails: NDArray[np.int32],
    left_out: Words,
    top: NDArray[np.int64],
    bottom: NDArray[np.int64],
) -> None:
    """Raise top / bottom to the load of `node`; `left_out[c]` becomes what arrives and no link of the set c brings."""
    degree = tails.shape[1]
    for word in range(heard.shape[1]):
        left_out[0, word] = following[node, word] & ~heard[node, word]
    for others in range(2**degree - 1):
        size = degree
        if others:
            lowest = 0
            while not (others >> lowest) & 1:
                lowest += 1
            before, bringer = left_out[others & (others - 1)], heard[tails[node, lowest]]
            for word in range(heard.shape[1]):
                left_out[others, word] = before[word] & ~bringer[word]
        count = np.int64(0)
        for word in range(heard.shape[1]):
            count += _ones(left_out[others, word])
        for link in range(degree):
            size -= (others >> link) & 1
        if count * bottom[0] > top[0] * size:
            top[0], bottom[0] = count, size
