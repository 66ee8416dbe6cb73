"""Directed graphs of words: Kautz, generalized Kautz, de Bruijn."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from chorale.synth.topology.families.unit import unit_topology
from chorale.synth.topology.grammar import FamilyCall
from chorale.synth.topology.registry import Family, TopologyPlan, fixed_numbers, require
from chorale.synth.topology.topology import MAX_NODES, Topology

_MAX_LETTERS = MAX_NODES.bit_length() - 1


def plan_kautz(call: FamilyCall) -> TopologyPlan:
    """Kautz graph K(d, n), the n-fold line graph of the complete graph on d + 1 nodes.

    Words of n + 1 letters out of d + 1, no two neighbours equal, in lexicographic order; a word is linked to those
    that drop its first letter and append one. d >= 2, n >= 0; d^n (d + 1) nodes, degree d, diameter n + 1,
    reverse-symmetric. BFB is Moore-optimal; its bandwidth is within a factor 2 of the optimum (factor 1 for
    n = 0).
    Source: Zhao et al., "Efficient Direct-Connect Topologies for Collective Communications", appendix F.2.
    """
    d, n = fixed_numbers(call, "kautz:d,n", 2)
    require(d >= 2, "kautz:d,n must have a degree d >= 2", call, "use kautz:2,n")
    require(n <= _MAX_LETTERS, f"kautz:d,n must have n <= {_MAX_LETTERS}", call, "choose a smaller network")
    nodes = d**n * (d + 1)
    return TopologyPlan(str(call), nodes, d * nodes, lambda: _kautz(str(call), d, n))


def plan_genkautz(call: FamilyCall) -> TopologyPlan:
    """Generalized Kautz graph Pi(d, m) of Imase and Itoh: links x to -d x - a modulo m for a = 1, …, d.

    d >= 2, m >= d + 1; m nodes, degree d with self-loops and parallel links counted, diameter at most one above
    the Moore bound (theorem 21), not always reverse-symmetric. Self-loops where d + 1 does not divide m. For
    m = d^n (d + 1) it is the Kautz graph K(d, n). BFB needs at most one step more than the Moore bound; its
    bandwidth is within a factor 2 of the optimum up to 2000 nodes (computed, not proved).
    Source: Zhao et al., "Efficient Direct-Connect Topologies for Collective Communications", appendix F.2.
    """
    d, m = fixed_numbers(call, "genkautz:d,m", 2)
    require(d >= 2, "genkautz:d,m must have a degree d >= 2", call, "use genkautz:2,m")
    require(m >= d + 1, "genkautz:d,m must have m >= d + 1 nodes", call, "choose a smaller degree or more nodes")
    return TopologyPlan(str(call), m, d * m, lambda: _genkautz(str(call), d, m))


def plan_debruijn(call: FamilyCall) -> TopologyPlan:
    """De Bruijn graph DBJ(d, n): links x to d x + a modulo d^n for a = 0, …, d - 1.

    Words of n letters out of d in lexicographic order; a word is linked to those that drop its first letter and
    append one. d >= 2, n >= 1; d^n nodes, degree d with the d self-loops counted, diameter n, reverse-symmetric.
    BFB is Moore-optimal for n > 1; its bandwidth is not optimal because self-loops carry nothing.
    Source: Zhao et al., "Efficient Direct-Connect Topologies for Collective Communications", table of bases.
    """
    d, n = fixed_numbers(call, "debruijn:d,n", 2)
    require(d >= 2, "debruijn:d,n must have a degree d >= 2", call, "use debruijn:2,n")
    require(n >= 1, "debruijn:d,n must have words of n >= 1 letters", call, "use debruijn:d,2")
    require(n <= _MAX_LETTERS, f"debruijn:d,n must have n <= {_MAX_LETTERS}", call, "choose a smaller network")
    return TopologyPlan(str(call), d**n, d ** (n + 1), lambda: _debruijn(str(call), d, n))


def _kautz(spec: str, d: int, n: int) -> Topology:
    words = _kautz_words(d, n + 1)
    codes = _codes(words, d + 1)  # ascending, because the words are in lexicographic order
    last = words[:, -1:]
    letters = np.arange(d) + (np.arange(d) >= last)  # row by row, all letters but the last
    following = (codes[:, None] % (d + 1) ** n) * (d + 1) + letters
    rank = np.arange(len(words))
    arcs = (np.repeat(rank, d), np.searchsorted(codes, following.ravel()))
    turn, swap = (np.arange(d + 1) + 1) % (d + 1), np.r_[1, 0, np.arange(2, d + 1)]
    symmetries = [np.searchsorted(codes, _codes(letter[words], d + 1)) for letter in (turn, swap)]
    return unit_topology(spec, len(words), [arcs], symmetries)


def _kautz_words(d: int, length: int) -> NDArray[np.int64]:
    """Return int64[words, length]: all words without equal neighbours, in lexicographic order."""
    words = np.arange(d + 1)[:, None]
    for _ in range(length - 1):
        letters = np.arange(d) + (np.arange(d) >= words[:, -1:])
        words = np.column_stack([np.repeat(words, d, axis=0), letters.ravel()])
    return words


def _codes(words: NDArray[np.int64], base: int) -> NDArray[np.int64]:
    return words @ base ** np.arange(words.shape[1])[::-1]


def _genkautz(spec: str, d: int, m: int) -> Topology:
    node = np.arange(m)
    arcs = [(node, (-d * node - a) % m) for a in range(1, d + 1)]
    # x to x + c keeps all links where (d + 1) c is a multiple of m, and so does x to -1 - x.
    shifted = (node + m // math.gcd(m, d + 1)) % m
    return unit_topology(spec, m, arcs, [shifted, m - 1 - node])


def _debruijn(spec: str, d: int, n: int) -> Topology:
    node = np.arange(d**n)
    arcs = [(node, (d * node + a) % d**n) for a in range(d)]
    place = d ** np.arange(n)
    digits = node[:, None] // place % d
    turn, swap = (np.arange(d) + 1) % d, np.r_[1, 0, np.arange(2, d)]
    return unit_topology(spec, d**n, arcs, [letter[digits] @ place for letter in (turn, swap)])


KAUTZ_FAMILIES = (
    Family("kautz", "kautz:d,n", "kautz:2,2", "directed, n-fold line graph of complete:d+1", plan_kautz),
    Family("genkautz", "genkautz:d,m", "genkautz:4,64", "directed, any m > d nodes at low diameter", plan_genkautz),
    Family("debruijn", "debruijn:d,n", "debruijn:2,3", "directed, d^n words; d self-loops", plan_debruijn),
)
