"""The cost of breadth-first broadcast on a line graph, which need not be built for it."""

from __future__ import annotations

from fractions import Fraction
from math import lcm

import numpy as np
from numpy.typing import NDArray

from chorale.synth.errors import InvalidInput
from chorale.synth.expand.prediction import Prediction, regular_degree
from chorale.synth.topology.distance import hop_distances
from chorale.synth.topology.topology import Topology

MAX_DEGREE = 12
Counts = NDArray[np.int64]


def predict_bfb_line(topology: Topology) -> Prediction:
    """Return what the best BFB allgather on L(G) costs, for a d-regular G of unit capacity with d <= 12. Exact.

    At node (u, w) of L(G) in step t + 1 arrive the shards of all links into every v at distance t from u, over the
    in-links of u that v may use in G. So the problem of u and t has each shard d times, less the shard of (u, w)
    itself, if w is at distance t. For a set S of in-links, with n(S) the shards v that can use no others, the step
    takes as long as the largest (d n(S) - [(u, w) is among them]) / |S|, and its first step 1 shard.

    Theorem 10 of the full paper, T_B(L(G)) = T_B(G) + 1 / N, leaves out what a node need not receive from itself: it
    is an upper bound, and L(G) can be bandwidth-optimal where it says otherwise. O(N (N d + D d 2^d)), D the diameter.
    Raises InvalidInput for other networks.
    """
    degree, nodes = regular_degree(topology), topology.compute_count
    if degree > MAX_DEGREE:
        rule = f"the cost of BFB on a line graph is predicted up to degree {MAX_DEGREE}"
        raise InvalidInput(rule, f"{topology.spec} of degree {degree}", "make the schedule with bfb")
    links, hops = topology.links, hop_distances(topology)
    tails = links.src.reshape(nodes, degree)
    heads = links.dst[np.argsort(links.src, kind="stable")].reshape(nodes, degree)
    unit = lcm(*range(1, degree + 1))
    times = np.zeros(int(hops.max()), dtype=np.int64)
    for node in range(nodes):
        own = hops[node].astype(np.int64)
        near = hops[tails[node]].astype(np.int64) + 1 == own
        usable = (near << np.arange(degree)[:, None]).sum(axis=0)
        longest = _step_times(own, usable, heads[node], degree, unit)
        times[: len(longest)] = np.maximum(times[: len(longest)], longest)
    loads = (Fraction(1), *(Fraction(int(time), unit) for time in times if time))
    return Prediction(nodes * degree, degree, loads)


def _step_times(own: Counts, usable: Counts, heads: NDArray[np.int32], degree: int, unit: int) -> Counts:
    """Return the longest of each step at the nodes (u, w), in 1 / `unit` shards.

    own, usable: distance of each v to u, and the in-links of u that it can use as bits; heads: all w
    """
    steps, sets = int(own.max()) + 1, np.arange(1 << degree)
    inside = np.bincount(own * len(sets) + usable, minlength=steps * len(sets)).reshape(steps, len(sets))
    for bit in range(degree):
        halves = inside.reshape(steps, -1, 2, 1 << bit)
        halves[:, :, 1, :] += halves[:, :, 0, :]
    inside *= degree
    together = int(own[heads[0]])
    if np.all(own[heads] == together):  # else some (u, w) has nothing of its own in the set, and is the busiest
        needed = np.bitwise_or.reduce(usable[heads])
        inside[together, (sets & needed) == needed] -= 1
    sizes = np.bitwise_count(sets[1:]).astype(np.int64)
    longest: Counts = (inside[1:, 1:] * (unit // sizes)).max(axis=1)
    return longest
