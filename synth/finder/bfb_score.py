"""The exact cost of BFB on a topology, steps and bandwidth factor, without making the schedule.

Networks of low diameter and degree have kernels that keep sets of nodes as bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from chorale.synth.errors import InvalidInput
from chorale.synth.kernels.compiled import compiled, inlined
from chorale.synth.kernels.types import Matrix
from chorale.synth.methods.bfb.balance_solver import Problems
from chorale.synth.methods.bfb.node_batches import least_loads
from chorale.synth.methods.bfb.plan import MAX_HOPS, BfbNetwork, network_of, problems_of, steps_of
from chorale.synth.topology.automorphism import checked_orbits
from chorale.synth.topology.distance import distances_to
from chorale.synth.topology.topology import Topology

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
def _hear(heard: Matrix[np.uint64], tails: Matrix[np.int32], following: Matrix[np.uint64]) -> None:
    """Write who has been heard one step after `heard`: by itself or by the tail of an in-link."""
    for node in range(len(tails)):
        following[node] = heard[node]
        for link in range(tails.shape[1]):
            following[node] |= heard[tails[node, link]]


@compiled
def loads_of_low_diameter(
    tails: Matrix[np.int32], chosen: NDArray[np.int64], max_steps: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the BFB load of every step as p / q, in shards per link of capacity 1.

    tails: int32[N, degree], tails of the in-links of every node; degree <= MAX_DEGREE. `chosen`: at least one node of
    every orbit. The load of a step is the largest n(S) / |S| over chosen nodes and sets S of in-links; n(S) counts the
    shards that arrive and that only S brings (full paper, theorem 19). A shard arrives if it has not been heard before,
    and link k brings it if its tail has heard it.
    Empty arrays if the diameter is above `max_steps`. A node that can split what arrives over its links without
    taking longer than another one is passed over: what a node has newly heard bounds what it can bring, and a split is
    tried. N^2 / 4 bytes, and time O(diameter * degree * N * N / 64), 2^degree in place of degree for the others.
    """
    nodes, degree = tails.shape
    words = (nodes + 63) // 64
    heard = np.zeros((nodes, words), dtype=np.uint64)
    following = np.zeros((nodes, words), dtype=np.uint64)
    for node in range(nodes):
        heard[node, node // 64] = np.uint64(1) << np.uint64(node % 64)
    left_out = np.zeros((2**degree, words), dtype=np.uint64)
    top, bottom = np.zeros(max_steps, dtype=np.int64), np.ones(max_steps, dtype=np.int64)
    total, newly, arriving = np.ones(nodes, np.int64), np.ones(nodes, np.int64), np.ones(nodes, np.int64)
    for step in range(max_steps):
        _hear(heard, tails, following)
        for node in range(nodes):
            count = np.int64(0)
            for word in range(words):
                count += _ones(following[node, word])
            arriving[node] = count - total[node]
            total[node] = count
        missing = np.int64(0)
        for node in chosen:
            missing += nodes - total[node]
            if arriving[node] * bottom[step] > top[step] * degree:
                top[step], bottom[step] = arriving[node], degree
        load = top[step : step + 1], bottom[step : step + 1]
        for node in chosen:
            if _may_take_longer(node, heard, following, tails, newly, top[step] // bottom[step]):
                _raise_load(node, heard, following, tails, left_out, load[0], load[1])
        if missing == 0:
            return top[: step + 1], bottom[: step + 1]
        heard, following = following, heard
        newly, arriving = arriving, newly
    return top[:0], bottom[:0]


@inlined
def _least(counts: NDArray[np.int64]) -> int:
    """Return where the smallest of `counts` stands."""
    least = 0
    for link in range(1, len(counts)):
        if counts[link] < counts[least]:
            least = link
    return least


@inlined
def _may_take_longer(
    node: int,
    heard: Matrix[np.uint64],
    following: Matrix[np.uint64],
    tails: Matrix[np.int32],
    newly: NDArray[np.int64],
    limit: int,
) -> bool:
    """Whether the load of `node` may be above `limit`, whole shards: no split into at most as many per link was found.

    newly: how many shards each node heard first in the step before, which are all that it can bring now. Shards go to
    the link with fewest first, 64 at a time.
    """
    degree = tails.shape[1]
    most = np.int64(0)
    for link in range(degree):
        most = max(most, newly[tails[node, link]])
    if most <= limit:
        return False
    counts = np.zeros(degree, dtype=np.int64)
    for word in range(heard.shape[1]):
        rest = following[node, word] & ~heard[node, word]
        if rest == np.uint64(0):
            continue
        least = _least(counts)
        for turn in range(degree):
            link = (least + turn) % degree
            part = rest & heard[tails[node, link], word]
            size = _ones(part)
            while size > limit - counts[link]:
                part &= part - np.uint64(1)
                size -= 1
            counts[link] += size
            rest &= ~part
        if rest != np.uint64(0):
            return True
    return False


@inlined
def _raise_load(
    node: int,
    heard: Matrix[np.uint64],
    following: Matrix[np.uint64],
    tails: Matrix[np.int32],
    left_out: Matrix[np.uint64],
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


_LOW_DIAMETER = 24
_FEW = 8
"""Representatives pay off if their searches are at most one in so many of all."""


MAX_NODES_WITHOUT_SYMMETRIES = 2**14
"""Up to so many nodes a network is scored at every node; that takes time in the square of their number."""


class TooLargeToScore(InvalidInput):
    """The cost of BFB on a network is not computed, because that would take too long."""


@dataclass(frozen=True, slots=True)
class BfbScore:
    """Steps of the BFB allgather, and T_B in M / B."""

    steps: int
    bandwidth_factor: Fraction


def bfb_score(topology: Topology) -> BfbScore:
    """Return the exact cost of the BFB allgather, that of `bfb_allgather` without a limit on chunks.

    For a regular direct-connect topology of unit links: T_B = (degree / N) * sum over steps of the largest load. Nodes
    that known symmetries (each checked) take to one another are solved once; else low diameters and degrees take
    the kernel on bits, all others that of BFB. Raises InvalidInput for anything else than such a topology, and its
    subclass TooLargeToScore for a large one without enough symmetries.
    """
    degree = topology.degree
    if degree is None or topology.node_bandwidth is None:
        rule = "a bandwidth factor must be asked of a regular network of equal links"
        raise InvalidInput(rule, topology.spec, "choose a direct-connect topology")
    loads = _loads(topology, degree)
    return BfbScore(len(loads), Fraction(degree, topology.node_count) * sum(loads))


def _loads(topology: Topology, degree: int) -> list[Fraction]:
    representatives = _representatives(topology)
    if len(representatives) * (degree + 1) * _FEW <= topology.node_count:
        return _loads_of(topology, representatives)
    if topology.node_count > MAX_NODES_WITHOUT_SYMMETRIES:
        rule = f"a network of more than {MAX_NODES_WITHOUT_SYMMETRIES} nodes needs symmetries for a score of BFB"
        raise TooLargeToScore(rule, topology.spec, "use fewer nodes, or a network with symmetries")
    if degree <= MAX_DEGREE:
        tails = topology.links.src.reshape(-1, degree).copy()
        loads = low_diameter_loads(tails, representatives)
        if loads:
            return loads
    network = network_of(topology)
    problems = problems_of(network)
    top, bottom, _, _ = least_loads(0, network.nodes, problems, steps_of(network))
    return _fractions(top, bottom)


def low_diameter_loads(tails: NDArray[np.int32], chosen: NDArray[np.int64]) -> list[Fraction]:
    """Return the load of every step from the tails of in-links, rows by node; empty if the diameter is not low."""
    return _fractions(*loads_of_low_diameter(tails, chosen, _LOW_DIAMETER))


def _representatives(topology: Topology) -> NDArray[np.int64]:
    """Return one node of every orbit of the known symmetries."""
    return np.unique(checked_orbits(topology), return_index=True)[1].astype(np.int64)


def _loads_of(topology: Topology, chosen: NDArray[np.int64]) -> list[Fraction]:
    """Return the largest loads over the `chosen` nodes, by the same kernel with rows for them and their tails only."""
    network = network_of(topology, every_pair=False)
    problems = _problems_of_some(topology, network, chosen)
    steps = int(problems.rows[: len(chosen)].max())
    top, bottom, _, _ = least_loads(0, len(chosen), problems, steps)
    return _fractions(top, bottom)


def _problems_of_some(topology: Topology, network: BfbNetwork, chosen: NDArray[np.int64]) -> Problems:
    """Return the problems with the chosen nodes renamed 0, 1, …; nodes beyond them have no links."""
    ranges = [np.arange(network.offsets[node], network.offsets[node + 1]) for node in chosen]
    links = np.concatenate(ranges)
    targets, row_of_tail = np.unique(network.tails[links], return_inverse=True)
    hops = distances_to(topology, np.concatenate([chosen, targets]))
    if int(hops.max()) >= MAX_HOPS:
        raise TooLargeToScore(f"scores of BFB count up to {MAX_HOPS} hops", int(hops.max()), "use fewer nodes")
    rows = hops.astype(np.uint16)
    offsets = np.full(network.nodes + 1, len(links), dtype=np.int64)
    offsets[: len(chosen)] = np.cumsum([0, *map(len, ranges[:-1])])
    tails = (row_of_tail + len(chosen)).astype(np.int32)
    capacities, delays = network.capacities[links].copy(), network.delays[links].copy()
    return Problems(offsets, tails, capacities, delays, network.grain, rows, network.words)


def _fractions(top: NDArray[np.int64], bottom: NDArray[np.int64]) -> list[Fraction]:
    return [Fraction(int(p), int(q)) for p, q in zip(top, bottom, strict=True)]
