"""Networks ranked by all-to-all rate, and networks reached from cables that lie."""

from fractions import Fraction
from itertools import permutations

import pytest

from chorale.synth.errors import InvalidInput
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.finder.cabling import place_nodes
from chorale.synth.finder.candidate import greatest_rate
from chorale.synth.finder.find import FinderQuery, find
from chorale.synth.methods.alltoall.alltoall import alltoall_rate
from chorale.synth.topology.spec import parse_topology

QUERY = FinderQuery(16, 3, bidirectional=True)


def cables(spec):
    links = parse_topology(spec).links
    pairs = zip(links.src.tolist(), links.dst.tolist(), strict=True)
    return sorted({tuple(sorted((f"h{a:02}", f"h{b:02}"))) for a, b in pairs if a != b})


def test_the_best_by_rate_come_first_and_none_exceeds_the_bound():
    ranked = find(QUERY, SerialExecutor(), goal="alltoall").frontier
    rates = [alltoall_rate(parse_topology(row.candidate.spec)).lower for row in ranked]
    assert rates == [row.rate.lower for row in ranked] == sorted(rates, reverse=True)
    assert rates[0] <= greatest_rate(16, 3, bidirectional=True) == Fraction(3, 3 * 1 + 6 * 2 + 6 * 3)
    assert all(row.confirmed for row in ranked)


def test_both_keep_what_no_other_beats_in_all_three():
    both = find(QUERY, SerialExecutor(), goal="both").frontier
    costs = [(-row.rate.lower, row.candidate.steps, row.candidate.bandwidth_factor) for row in both]
    assert not any(a != b and all(x <= y for x, y in zip(a, b, strict=True)) for a in costs for b in costs)
    plain = find(QUERY, SerialExecutor()).frontier
    for row in plain:
        assert any(cost[1:] == (row.candidate.steps, row.candidate.bandwidth_factor) for cost in costs)


def test_many_nodes_are_not_ranked_by_rate():
    with pytest.raises(InvalidInput, match="up to 1024 nodes"):
        find(FinderQuery(2048, 4), SerialExecutor(), goal="both")


def test_the_network_that_lies_needs_no_move():
    lying = cables("torus:3x4")
    cabling = place_nodes(parse_topology("torus:4x3"), sorted({host for cable in lying for host in cable}), lying, True)
    assert (cabling.moves, cabling.removed, list(cabling.kept)) == (0, (), lying)


def test_as_many_cables_stay_as_any_place_keeps():
    lying = cables("circulant:7,1,3")
    wanted = parse_topology("circulant:7,1,2")
    hosts = [f"h{rank:02}" for rank in range(7)]
    links = {tuple(sorted(pair)) for pair in zip(wanted.links.src.tolist(), wanted.links.dst.tolist(), strict=True)}
    most = max(len({tuple(sorted((at[a], at[b]))) for a, b in links} & set(lying)) for at in permutations(hosts))
    cabling = place_nodes(wanted, hosts, lying, True)
    assert len(cabling.kept) == most
    assert sorted(cabling.kept + cabling.removed) == lying
    assert len(cabling.kept) + cabling.moves == len(links)
