"""Scores of generalized Kautz graphs, straight from their arithmetic: a search needs thousands of them."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from chorale.synth.finder.reach import MAX_DEGREE
from chorale.synth.finder.score import BfbScore, bfb_score, low_diameter_loads
from chorale.synth.topology.spec import parse_topology


def kautz_score(degree: int, nodes: int) -> BfbScore:
    """Return the score of genkautz:degree,nodes: links from x to -degree x - a modulo nodes for a = 1, …, degree.

    Building the topology would take longer than scoring it. x to -1 - x keeps all links, and so does a shift by
    nodes / gcd(nodes, degree + 1): one node of each orbit is enough.
    """
    if degree > MAX_DEGREE:
        return bfb_score(parse_topology(f"genkautz:{degree},{nodes}"))
    node = np.arange(nodes)
    target = (-degree * node[:, None] - np.arange(1, degree + 1)) % nodes
    by_target = np.argsort(target, axis=None, kind="stable")
    tails = (by_target // degree).astype(np.int32).reshape(nodes, degree)
    period = nodes // math.gcd(nodes, degree + 1)
    chosen = np.unique(np.minimum(node % period, (-1 - node) % period))
    loads = low_diameter_loads(tails, chosen)
    return BfbScore(len(loads), Fraction(degree, nodes) * sum(loads))
