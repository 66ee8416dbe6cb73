"""What no direct-connect topology of a given size and degree can beat."""

from __future__ import annotations

from fractions import Fraction


def least_steps(nodes: int, degree: int, bidirectional: bool = False) -> int:
    """Return the smallest number of steps in which a node can hear from all others (Moore bound).

    Directed: at most degree^t nodes are t hops away. Bidirectional (every link has its reverse): at most
    degree (degree - 1)^(t - 1), because one link of every node on the way leads back. nodes >= 2, degree >= 1.
    """
    branches = degree - 1 if bidirectional else degree
    reached, ring, steps = 1, degree, 0
    while reached < nodes:
        if ring == 0:
            rule = f"no bidirectional network of degree {degree} has {nodes} nodes"
            raise ValueError(rule)
        reached += ring
        ring *= branches
        steps += 1
    return steps


def least_bandwidth_factor(nodes: int) -> Fraction:
    """Return (N - 1) / N: every node must receive N - 1 shards of M / N bytes through links of bandwidth B in all."""
    return Fraction(nodes - 1, nodes)
