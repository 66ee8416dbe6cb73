"""Splits of links for trees there and back: cuts are found fast, and what is left undone carries its trees."""

from collections import Counter
from dataclasses import replace
from fractions import Fraction

import pytest

from chorale.synth.errors import InvalidInput
from chorale.synth.methods.in_network import splits as undirected_split
from chorale.synth.methods.in_network.splits import best_split, whole_units
from chorale.synth.topology.relabelling import promoted
from chorale.synth.topology.spec import parse_topology


def relabelled(spec):
    topology = parse_topology(spec)
    return promoted(topology, list(topology.abilities))


@pytest.mark.parametrize("spec", ["able(fattree:6)", "able(fattree:8)", "able(without(fattree:6;node=3))"])
def test_few_rounds_are_enough(monkeypatch, spec):
    monkeypatch.setattr(undirected_split, "_MAX_ROUNDS", 25)
    assert best_split(relabelled(spec)).rate == 25


@pytest.mark.parametrize("rounds", [6, 9, 12])
def test_without_enough_rounds_the_split_still_carries_its_trees(monkeypatch, rounds):
    monkeypatch.setattr(undirected_split, "_MAX_ROUNDS", rounds)
    network = relabelled("able(without(fattree:8;node=3))")
    split = best_split(network)
    assert 12 < split.rate < 25
    whole, both_ways = whole_units(network, split, None), Counter()
    links = network.network.links
    for src, dst, amount in zip(links.src.tolist(), links.dst.tolist(), whole.carried.tolist(), strict=True):
        both_ways[frozenset((src, dst))] += amount
    assert Fraction(25 * int(whole.supply.sum()), max(both_ways.values())) >= split.rate * Fraction(999, 1000)


def test_a_split_that_leaves_a_rank_out_is_refused():
    network = relabelled("able(fattree:4)")
    split = best_split(network)
    shut = [Fraction(0) if dst == 0 else amount for dst, amount in zip(split.arcs.dst, split.outward, strict=True)]
    with pytest.raises(InvalidInput, match="must carry its trees"):
        whole_units(network, replace(split, outward=tuple(shut)), None)
