"""Cayley digraphs: links x to x g for every generator g of a group, and the directed circulant."""

from __future__ import annotations

import numpy as np

from chorale.synth.topology.families.unit import unit_topology
from chorale.synth.topology.grammar import FamilyCall
from chorale.synth.topology.registry import Family, TopologyPlan, fixed_numbers, require, whole_numbers
from chorale.synth.topology.semidirect import SemidirectProduct
from chorale.synth.topology.topology import Topology

_SYNTAX = "cayley:m.k.r,g1,g2,… or cayley:m.k.r.l,g1,g2,…"


def plan_cayley(call: FamilyCall) -> TopologyPlan:
    """Cayley digraph of a semidirect product of Z_m and Z_k by r, times Z_l (l = 1 where it is left out).

    Element (a, b, c) has rank (a k + b) l + c, with (a, b, c) (a', b', c') = (a + r^b a', b + b', c + c'); links
    x to x g for every generator g, given by rank. Generators must differ, must not be the identity 0 and must
    generate the group. m k l nodes, degree the number of generators, vertex-transitive (multiplication from the
    left), reverse-symmetric where some automorphism of the group turns the generators into their inverses.
    Search finds generators with a bandwidth-optimal BFB schedule near or at the Moore bound: `base:cayley-N-d`.
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
    """Directed circulant on d + 2 nodes: links i to i + a modulo d + 2 for a = 1, …, d.

    d >= 1, degree d, diameter 2, reverse-symmetric (i to -i). BFB is Moore- and bandwidth-optimal.
    Source: Zhao et al., "Efficient Direct-Connect Topologies for Collective Communications", table of bases.
    """
    (d,) = fixed_numbers(call, "dicirculant:d", 1)
    require(d >= 1, "dicirculant:d must have a degree d >= 1", call, "use dicirculant:1")
    return TopologyPlan(str(call), d + 2, d * (d + 2), lambda: _dicirculant(str(call), d))


def build_cayley(spec: str, group: SemidirectProduct, generators: list[int]) -> Topology:
    """Return the Cayley digraph of `group`; its symmetries are the multiplications from the left."""
    node = np.arange(group.order)
    arcs = [(node, group.product(node, np.full_like(node, generator))) for generator in generators]
    turns = [group.product(np.full_like(node, factor), node) for factor in group.generating_set]
    return unit_topology(spec, group.order, arcs, turns)


def _dicirculant(spec: str, d: int) -> Topology:
    node = np.arange(d + 2)
    src, shift = np.repeat(node, d), np.tile(np.arange(1, d + 1), d + 2)
    return unit_topology(spec, d + 2, [(src, (src + shift) % (d + 2))], [(node + 1) % (d + 2)])


CAYLEY_FAMILIES = (
    Family("dicirculant", "dicirculant:d", "dicirculant:4", "directed circulant on d + 2 nodes", plan_dicirculant),
    Family(
        "cayley",
        _SYNTAX,
        "cayley:8.2.7.2,18,27,8,20",
        "Cayley digraph of a semidirect product of Z_m and Z_k by r, times Z_l",
        plan_cayley,
    ),
)
