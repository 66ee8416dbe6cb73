"""Builds networks with one-way links: Kautz, generalized Kautz and de Bruijn graphs, Cayley digraphs, circulants."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from chorale.synth.topology.families.builders import unit_topology
from chorale.synth.topology.registry import Family, FamilyCall, TopologyPlan, fixed_numbers, require, whole_numbers
from chorale.synth.topology.topology import MAX_NODES, Topology

Elements = NDArray[np.int64]
_MAX_LETTERS = MAX_NODES.bit_length() - 1
_SYNTAX = "cayley:m.k.r,g1,g2,… or cayley:m.k.r.l,g1,g2,…"


@dataclass(frozen=True, slots=True)
class SemidirectProduct:
    """A group of triples in Z_m x Z_k x Z_l: (a, b, c) (a', b', c') = (a + r^b a', b + b', c + c').

    Elements are numbered (a k + b) l + c; the identity is 0. This is a group if and only if r^k = 1 modulo m.
    """

    m: int
    k: int
    r: int
    l: int = 1  # noqa: E741 - files and specs call it l

    @property
    def order(self) -> int:
        return self.m * self.k * self.l

    @property
    def is_group(self) -> bool:
        return min(self.m, self.k, self.l) >= 1 and pow(self.r, self.k, self.m) == 1 % self.m

    @property
    def generating_set(self) -> tuple[int, ...]:
        """Elements that generate the group: one for each nontrivial cyclic factor."""
        factors = ((self.m, self.k * self.l), (self.k, self.l), (self.l, 1))
        return tuple(element for size, element in factors if size > 1)

    def product(self, first: Elements, second: Elements) -> Elements:
        a, b, c = self._coordinates(first)
        a_second, b_second, c_second = self._coordinates(second)
        powers = np.array([pow(self.r, exponent, self.m) for exponent in range(self.k)], dtype=np.int64)
        a_product = (a + powers[b] * a_second) % self.m
        ranks: Elements = (a_product * self.k + (b + b_second) % self.k) * self.l + (c + c_second) % self.l
        return ranks

    def _coordinates(self, elements: Elements) -> tuple[Elements, Elements, Elements]:
        rest, c = np.divmod(elements, self.l)
        a, b = np.divmod(rest, self.k)
        return a, b, c


def plan_kautz(call: FamilyCall) -> TopologyPlan:
    """Kautz graph K(d, n), the n-fold line graph of the complete graph on d + 1 nodes.

    Nodes are the words of n + 1 letters in which no two neighbouring letters are equal, in lexicographic order. The
    alphabet has d + 1 letters. A word has links to the words that result from dropping its first letter and appending
    any letter except its last one. d >= 2, n >= 0; d^n (d + 1) nodes, degree d, diameter n + 1, reverse-symmetric. BFB
    is Moore-optimal; its bandwidth is within a factor of 2 of the optimum (optimal for n = 0).
    Source: Zhao et al., "Efficient Direct-Connect Topologies for Collective Communications", appendix F.2.
    """
    d, n = fixed_numbers(call, "kautz:d,n", 2)
    require(d >= 2, "kautz:d,n must have a degree d >= 2", call, "use kautz:2,n")
    require(n <= _MAX_LETTERS, f"kautz:d,n must have n <= {_MAX_LETTERS}", call, "choose a smaller network")
    nodes = d**n * (d + 1)

    def build() -> Topology:
        words = np.arange(d + 1)[:, None]  # all words without equal neighbouring letters, in lexicographic order
        for _ in range(n):
            letters = np.arange(d) + (np.arange(d) >= words[:, -1:])
            words = np.column_stack([np.repeat(words, d, axis=0), letters.ravel()])
        codes = _codes(words, d + 1)  # ascending, because the words are in lexicographic order
        letters = np.arange(d) + (np.arange(d) >= words[:, -1:])  # per word: all letters but its last
        following = (codes[:, None] % (d + 1) ** n) * (d + 1) + letters
        rank = np.arange(len(words))
        arcs = (np.repeat(rank, d), np.searchsorted(codes, following.ravel()))
        turn, swap = (np.arange(d + 1) + 1) % (d + 1), np.r_[1, 0, np.arange(2, d + 1)]
        symmetries = [np.searchsorted(codes, _codes(letter[words], d + 1)) for letter in (turn, swap)]
        return unit_topology(str(call), len(words), [arcs], symmetries)

    return TopologyPlan(str(call), nodes, d * nodes, build)


def plan_genkautz(call: FamilyCall) -> TopologyPlan:
    """Generalized Kautz graph Pi(d, m) of Imase and Itoh: links from x to -d x - a modulo m for a = 1, …, d.

    d >= 2, m >= d + 1; m nodes, degree d including self-loops and parallel links, diameter at most one above
    the Moore bound (theorem 21), not always reverse-symmetric. There are self-loops if d + 1 does not divide m. For
    m = d^n (d + 1), the graph is the Kautz graph K(d, n). BFB needs at most one step more than the Moore bound; its
    bandwidth is within a factor of 2 of the optimum up to 2000 nodes (computed, not proved).
    Source: Zhao et al., "Efficient Direct-Connect Topologies for Collective Communications", appendix F.2.
    """
    d, m = fixed_numbers(call, "genkautz:d,m", 2)
    require(d >= 2, "genkautz:d,m must have a degree d >= 2", call, "use genkautz:2,m")
    require(m >= d + 1, "genkautz:d,m must have m >= d + 1 nodes", call, "choose a smaller degree or more nodes")

    def build() -> Topology:
        node = np.arange(m)
        arcs = [(node, (-d * node - a) % m) for a in range(1, d + 1)]
        # Moving x to x + c preserves all links if (d + 1) c is a multiple of m. Moving x to -1 - x always does.
        shifted = (node + m // math.gcd(m, d + 1)) % m
        return unit_topology(str(call), m, arcs, [shifted, m - 1 - node])

    return TopologyPlan(str(call), m, d * m, build)


def plan_debruijn(call: FamilyCall) -> TopologyPlan:
    """De Bruijn graph DBJ(d, n): links from x to d x + a modulo d^n for a = 0, …, d - 1.

    Nodes are the words of n letters from an alphabet of d letters, in lexicographic order; a word has links to the
    words that result from dropping its first letter and appending any letter. d >= 2, n >= 1; d^n nodes, of which d
    have a self-loop; degree d including self-loops, diameter n, reverse-symmetric. BFB is Moore-optimal for n > 1, but
    not bandwidth-optimal, because self-loops are not used.
    Source: Zhao et al., "Efficient Direct-Connect Topologies for Collective Communications", table of bases.
    """
    d, n = fixed_numbers(call, "debruijn:d,n", 2)
    require(d >= 2, "debruijn:d,n must have a degree d >= 2", call, "use debruijn:2,n")
    require(n >= 1, "debruijn:d,n must have words of n >= 1 letters", call, "use debruijn:d,2")
    require(n <= _MAX_LETTERS, f"debruijn:d,n must have n <= {_MAX_LETTERS}", call, "choose a smaller network")

    def build() -> Topology:
        node = np.arange(d**n)
        arcs = [(node, (d * node + a) % d**n) for a in range(d)]
        powers = d ** np.arange(n)
        digits = node[:, None] // powers % d
        turn, swap = (np.arange(d) + 1) % d, np.r_[1, 0, np.arange(2, d)]
        return unit_topology(str(call), d**n, arcs, [letter[digits] @ powers for letter in (turn, swap)])

    return TopologyPlan(str(call), d**n, d ** (n + 1), build)


def _codes(words: NDArray[np.int64], base: int) -> NDArray[np.int64]:
    return words @ base ** np.arange(words.shape[1])[::-1]


def plan_cayley(call: FamilyCall) -> TopologyPlan:
    """Cayley digraph of the semidirect product of Z_m and Z_k that r defines, times Z_l (l = 1 if omitted).

    Element (a, b, c) has rank (a k + b) l + c, with (a, b, c) (a', b', c') = (a + r^b a', b + b', c + c'); links
    go from x to x g for every generator g, given by rank. Generators must differ, must not be the identity 0 and must
    generate the group. m k l nodes; the degree is the number of generators; vertex-transitive (by multiplications from
    the left); reverse-symmetric if some automorphism of the group maps the generators to their inverses. For generators
    found by search, with a bandwidth-optimal BFB schedule near or at the Moore bound, see `base:cayley-N-d`.
    """
    group_text, _, generator_text = call.text.partition(",")
    group_numbers = whole_numbers(call, _SYNTAX, separator=".", text=group_text)
    way_out = f"write {_SYNTAX}"
    require(len(group_numbers) in (3, 4), "the group of cayley must be m.k.r or m.k.r.l", call, way_out)
    generators = whole_numbers(call, _SYNTAX, text=generator_text)
    m, k, r, *rest = group_numbers
    group = SemidirectProduct(m, k, r, *rest)
    rule = "r^k must be 1 modulo m, with m, k and l >= 1, for m.k.r.l to be a group"
    require(group.is_group, rule, call, way_out)
    in_range = all(1 <= g < group.order for g in generators)
    require(in_range, f"every generator must be a rank from 1 to {group.order - 1}", call, way_out)
    require(len(set(generators)) == len(generators), "generators must differ", call, "leave out the repetition")
    nodes = group.order
    return TopologyPlan(str(call), nodes, nodes * len(generators), lambda: build_cayley(str(call), group, generators))


def plan_dicirculant(call: FamilyCall) -> TopologyPlan:
    """Directed circulant on d + 2 nodes: links from i to i + a modulo d + 2 for a = 1, …, d.

    d >= 1, degree d, diameter 2, reverse-symmetric (i to -i). BFB is Moore- and bandwidth-optimal.
    Source: Zhao et al., "Efficient Direct-Connect Topologies for Collective Communications", table of bases.
    """
    (d,) = fixed_numbers(call, "dicirculant:d", 1)
    require(d >= 1, "dicirculant:d must have a degree d >= 1", call, "use dicirculant:1")

    def build() -> Topology:
        node = np.arange(d + 2)
        src, shift = np.repeat(node, d), np.tile(np.arange(1, d + 1), d + 2)
        return unit_topology(str(call), d + 2, [(src, (src + shift) % (d + 2))], [(node + 1) % (d + 2)])

    return TopologyPlan(str(call), d + 2, d * (d + 2), build)


def build_cayley(spec: str, group: SemidirectProduct, generators: list[int]) -> Topology:
    """Return the Cayley digraph of `group`. Its known symmetries are multiplications from the left."""
    node = np.arange(group.order)
    arcs = [(node, group.product(node, np.full_like(node, generator))) for generator in generators]
    turns = [group.product(np.full_like(node, factor), node) for factor in group.generating_set]
    return unit_topology(spec, group.order, arcs, turns)


DIRECTED_FAMILIES = (
    Family("kautz", "kautz:d,n", "kautz:2,2", "directed, n-fold line graph of complete:d+1", plan_kautz),
    Family("genkautz", "genkautz:d,m", "genkautz:4,64", "directed, any m > d nodes at low diameter", plan_genkautz),
    Family("debruijn", "debruijn:d,n", "debruijn:2,3", "directed, d^n words; d self-loops", plan_debruijn),
    Family("dicirculant", "dicirculant:d", "dicirculant:4", "directed circulant on d + 2 nodes", plan_dicirculant),
    Family(
        "cayley",
        _SYNTAX,
        "cayley:8.2.7.2,18,27,8,20",
        "Cayley digraph of a semidirect product of Z_m and Z_k by r, times Z_l",
        plan_cayley,
    ),
)
