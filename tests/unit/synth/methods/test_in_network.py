"""Trees over switches that add and multicast: rates against certified bounds and prices, steps, options, refusals."""

import random
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from itertools import product

import pytest

from chorale.experiments.framework.experiment import synthesized
from chorale.experiments.ours.quality import random_able_fabric
from chorale.synth.bounds.certificate import PAIR_PRICES, check_certificate, check_pair_certificate
from chorale.synth.bounds.lower_bound import bound_of_schedule, in_network_bound, reduce_scatter_allgather_time
from chorale.synth.build.build import build_program
from chorale.synth.collective import ALLREDUCE, parse_collective
from chorale.synth.errors import CheckFailed, InvalidInput
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.methods.forest.reversible_trees import schedule_of_pairs
from chorale.synth.methods.in_network import trees as undirected_split
from chorale.synth.methods.in_network.pair_packing import pair_packing, pairs_of_packing
from chorale.synth.methods.in_network.trees import best_split, mates_of, rate_of_pairs, whole_units
from chorale.synth.topology.expansions import promoted
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Link, Links, SwitchAbility, Topology
from chorale.synth.verify.verify import verify

ADDS, COPIES, BOTH = SwitchAbility(reduce=True), SwitchAbility(multicast=True), SwitchAbility(True, True)


def network(ranks, switches, wires):
    """Return a network of links (src, dst, width); switches by name, None for one that only passes on."""
    names = [*map(str, range(ranks)), *switches]
    links = Links.build(Link(names.index(src), names.index(dst), Fraction(width)) for src, dst, width in wires)
    able = {ranks + index: ability for index, ability in enumerate(switches.values()) if ability is not None}
    return Topology("file:drawn.json", tuple(names), ranks, links, abilities=able)


def star(switches, up, down, ranks=4):
    pairs = list(product(map(str, range(ranks)), switches))
    return [*((rank, switch, up) for rank, switch in pairs), *((switch, rank, down) for rank, switch in pairs)]


@pytest.mark.parametrize(
    ("spec", "rate", "steps"),
    [
        ("h100:2", "400", 4),
        ("h100:5", "250", 4),
        ("h100:16", "640/3", 4),
        ("nvl72:1", "900", 2),
        ("able(fattree:8)", "25", 2),
        ("able(without(fattree:6;node=3))", "25", 2),
        ("able(h100:4;switch=rail)", "400", 4),
        ("able(switch:8,450;reduce-bandwidth=100)", "300", 2),
        ("able(a100:2;switch=nvswitch)", "200", 4),
        ("without(h100:2;node=3)", "350", 6),
        ("scaled(h100:1;link=0-nvswitch:0;factor=1/2)", "225", 2),
        ("without(h100:2;link=0-nvswitch:0)", None, None),
    ],
)
def test_rates_meet_certified_bounds(spec, rate, steps):
    verified = synthesized("in-network", spec, ALLREDUCE)
    schedule = verified.schedule
    bound = bound_of_schedule(schedule, verified.cost.time_per_byte)
    assert check_certificate(schedule.topology, ALLREDUCE, bound.to_json(schedule.topology)) == bound.value
    assert verified.cost.time_per_byte == bound.value
    if rate is not None:
        assert schedule.is_in_network
        assert (1 / verified.cost.time_per_byte, verified.cost.steps) == (Fraction(rate), steps)


@pytest.mark.parametrize(("spec", "rate"), [("nvl72:2", Fraction(26640, 29)), ("nvl72:4", None)])
def test_racks_are_within_a_thousandth_of_the_bound(spec, rate):
    verified = synthesized("in-network", spec, ALLREDUCE)
    bound = in_network_bound(verified.schedule.topology, ALLREDUCE)
    assert verified.schedule.parameters["construction"] == "promotion"
    assert verified.cost.time_per_byte / bound.value < 1 + Fraction(5, 10_000)
    assert rate is None or 1 / verified.cost.time_per_byte == rate


@pytest.mark.parametrize("seed", range(40))
def test_random_fabrics(seed):
    verified = synthesized("in-network", random_able_fabric(seed), ALLREDUCE)
    bound = in_network_bound(verified.schedule.topology, ALLREDUCE)
    assert verified.cost.time_per_byte == bound.value, "the only known gaps of such fabrics are listed in the docs"


def test_a_gap_that_is_known():
    """An able and a pass-only switch, joined with each other and with three ranks: 2 is proved, trees reach 11/6."""
    topology = network(3, {"s": BOTH, "p": None}, [("s", "p", 1), ("p", "s", 1), *star("sp", 1, 1, 3)])
    packing = pair_packing(topology, Fraction(2), mates_of(topology))
    assert 1 / check_pair_certificate(topology, packing.certificate) == packing.rate
    assert packing.rate == Fraction(11, 6)
    assert 1 / synthesized("in-network", topology, ALLREDUCE).cost.time_per_byte == Fraction(11, 6)
    assert 1 / in_network_bound(topology, ALLREDUCE).value == 2


def test_parallel_spines_each_have_trees_of_their_own():
    wires = [(str(rank), "abcd"[rank // 4], 1) for rank in range(16)]
    wires += [(leaf, spine, Fraction(1, 4)) for leaf in "abcd" for spine in "wxyz"]
    topology = network(16, dict.fromkeys("abcdwxyz", BOTH), [*wires, *((b, a, width) for a, b, width in wires)])
    assert 1 / synthesized("in-network", topology, ALLREDUCE).cost.time_per_byte == 1


@pytest.mark.parametrize("k", [1, 3])
def test_fixed_k(k):
    verified = synthesized("in-network", "nvl72:2", ALLREDUCE, k=k)
    bound = in_network_bound(verified.schedule.topology, ALLREDUCE)
    assert bound.value <= verified.cost.time_per_byte <= Fraction(11, 10) * bound.value
    with pytest.raises(InvalidInput, match="multicast or add"):
        synthesized("in-network", "a100:2", ALLREDUCE)


APART, BEHIND = {"a": ADDS, "m": COPIES}, {"p": None, "a": ADDS, "m": COPIES}
DRAWN = {
    "wider down": (network(4, {"s": BOTH}, star("s", 10, 20)), "10", 2),
    "one slow link": (network(4, {"s": BOTH}, [*star("s", 10, 10, 3), ("3", "s", 5), ("s", "3", 10)]), "5", 2),
    "adder beside multicaster": (
        network(4, APART, [*star("am", 10, 10), ("a", "m", 10), ("m", "a", 10)]), "15", 4,
    ),
    "adder, then multicaster, behind a switch": (
        network(4, BEHIND, [*star("p", 10, 10), ("p", "a", 40), ("a", "m", 10), ("m", "p", 40)]), "10", 1,
    ),
    "up to one, down from another": (
        network(3, APART, [*((r, "a", 1) for r in "012"), *(("m", r, 1) for r in "012"), ("a", "m", 1)]), "1", 1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DRAWN)
def test_drawn_networks(name):
    topology, rate, steps = DRAWN[name]
    verified = synthesized("in-network", topology, ALLREDUCE)
    assert verified.schedule.is_in_network
    assert (1 / verified.cost.time_per_byte, verified.cost.steps) == (Fraction(rate), steps)
    assert verified.cost.time_per_byte >= in_network_bound(topology, ALLREDUCE).value
    build_program(verified, LoweringOptions("oneccl-xml"))  # executes it on sets of contributions


@pytest.mark.parametrize("collective", ["reduce", "reduce_scatter", "broadcast", "allgather"])
@pytest.mark.parametrize("name", ["a box", "wider down"])
def test_one_way_collectives_meet_their_bound(name, collective):
    topology = DRAWN[name][0] if name in DRAWN else parse_topology("h100:1")
    verified = synthesized("in-network", topology, collective)
    assert verified.cost.time_per_byte == in_network_bound(topology, parse_collective(collective)).value
    assert name != "a box" or (verified.schedule.is_in_network and verified.cost.steps == 1)


def one_of_any_kind(seed):
    """Return a random network: widths of their own each way, switches that add, multicast, both or neither."""
    source, topology = random.Random(seed), random_able_fabric(seed, most_ranks=4, most_switches=3)
    links = [Link(link.src, link.dst, link.bandwidth * source.choice((1, 2))) for link in topology.links]
    able = {node: source.choice((ADDS, COPIES, BOTH)) for node in topology.abilities}
    first = min(able)
    if able[first].reduce and source.random() < 0.3:
        able[first] = replace(able[first], reduce_bandwidth=Fraction(1, 2))
    return Topology("file:drawn.json", topology.node_ids, topology.compute_count, Links.build(links), abilities=able)


@pytest.mark.parametrize("seed", range(30))
def test_random_networks_reach_what_prices_prove(seed):
    """The rate of a replayed schedule, and a bound on all pairs of trees that code of its own checks, are equal."""
    topology = one_of_any_kind(seed)
    packing = pair_packing(topology, Fraction(10**6))
    least = check_pair_certificate(topology, packing.certificate)
    pairs, close = pairs_of_packing(packing, None), 1 + Fraction(1, 10**5)
    words = {"method": "in-network", "parameters": {}, "certificate": packing.certificate}
    verified = verify(schedule_of_pairs(topology, ALLREDUCE, pairs, **words))
    assert verified.cost.time_per_byte == 1 / rate_of_pairs(topology, pairs)
    assert least <= verified.cost.time_per_byte <= least * close
    bound = in_network_bound(topology, ALLREDUCE).value
    assert bound <= least * close
    best = synthesized("in-network", topology, ALLREDUCE)
    assert best.cost.time_per_byte <= max(bound, min(least, reduce_scatter_allgather_time(topology))) * close
    if best.schedule.certificate.get("kind") == PAIR_PRICES:
        check_pair_certificate(topology, best.schedule.certificate)


def test_prices_of_a_narrower_network_prove_nothing_of_this_one():
    """Trees over equal widths both ways are compared with all others of the network itself."""
    wires = [*(("1", "0", 1), ("2", "0", 6), ("3", "0", 3), ("0", "1", 1), ("3", "1", 6), ("s", "1", 4))]
    wires += [*(("0", "2", 3), ("3", "2", 3), ("0", "3", 3), ("1", "3", 6), ("2", "3", 3), ("1", "s", 4))]
    topology = network(4, {"s": replace(BOTH, reduce_bandwidth=Fraction(1, 2))}, wires)
    verified = synthesized("in-network", topology, ALLREDUCE)
    assert verified.schedule.certificate["kind"] != PAIR_PRICES, "those of the narrower network say 1/5"
    assert check_certificate(topology, ALLREDUCE, verified.schedule.certificate) == Fraction(4, 23)


@pytest.mark.parametrize(
    "change",
    [
        {"time_per_byte": "1/14"},
        {"prices": [0] * 18},
        {"prices": [1] * 17},
        {"prices": [-1] * 18},
        {"sum_prices": {"a": 1}},  # it adds without a limit
        {"sum_prices": None},
        {"kind": "into"},
    ],
    ids=str,
)
def test_wrong_certificates_are_refused(change):
    topology, _, _ = DRAWN["adder beside multicaster"]
    certificate = pair_packing(topology, Fraction(100)).certificate
    assert check_pair_certificate(topology, certificate) == Fraction(1, 15)
    assert check_pair_certificate(topology, certificate | {"time_per_byte": "1/16"}) == Fraction(1, 16)
    with pytest.raises(CheckFailed):
        check_pair_certificate(topology, certificate | change)


def relabelled(spec):
    topology = parse_topology(spec)
    return promoted(topology, list(topology.abilities))


@pytest.mark.parametrize("rounds", [6, 12])
def test_without_enough_rounds_the_split_still_carries_its_trees(monkeypatch, rounds):
    monkeypatch.setattr(undirected_split, "_MAX_ROUNDS", 25)
    assert best_split(relabelled("able(without(fattree:6;node=3))")).rate == 25
    monkeypatch.setattr(undirected_split, "_MAX_ROUNDS", rounds)
    network = relabelled("able(without(fattree:8;node=3))")
    split = best_split(network)
    assert 12 < split.rate < 25
    whole, both_ways = whole_units(network, split, None), Counter()
    links = network.network.links
    for src, dst, amount in zip(links.src.tolist(), links.dst.tolist(), whole[0].tolist(), strict=True):
        both_ways[frozenset((src, dst))] += amount
    assert Fraction(25 * int(whole[1].sum()), max(both_ways.values())) >= split.rate * Fraction(999, 1000)


def test_a_split_that_leaves_a_rank_out_is_refused():
    network = relabelled("able(fattree:4)")
    split = best_split(network)
    shut = [Fraction(0) if dst == 0 else amount for dst, amount in zip(split.arcs.dst, split.outward, strict=True)]
    with pytest.raises(InvalidInput, match="must carry its trees"):
        whole_units(network, replace(split, outward=tuple(shut)), None)
