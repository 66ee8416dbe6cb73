"""Networks whose links are not as wide both ways, or whose switches only add or only multicast: rates and proofs."""

import random
from dataclasses import replace
from fractions import Fraction

import pytest

from chorale.experiments.ours.quality import random_able_fabric
from chorale.synth.bounds.certificate import KIND as PAIR_PRICES
from chorale.synth.bounds.certificate import check_certificate, check_price_certificate
from chorale.synth.bounds.lower_bound import in_network_bound, reduce_scatter_allgather_time
from chorale.synth.build.build import build_program
from chorale.synth.collective import ALLREDUCE, parse_collective
from chorale.synth.errors import CheckFailed
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.methods.catalog import synthesize
from chorale.synth.methods.in_network.pair_packing import pair_packing, pairs_of_packing
from chorale.synth.methods.in_network.paired_trees import rate_of_pairs, schedule_of_pairs
from chorale.synth.methods.method import Options
from chorale.synth.topology.abilities import SwitchAbility
from chorale.synth.topology.links import Link, Links
from chorale.synth.topology.topology import Topology
from chorale.synth.verify.verify import verify

ADDS, COPIES, BOTH = SwitchAbility(reduce=True), SwitchAbility(multicast=True), SwitchAbility(True, True)


def network(ranks, switches, wires):
    """Return a network of links (src, dst, width); switches by name, None for one that only passes on."""
    names = [*map(str, range(ranks)), *switches]
    links = Links.build(Link(names.index(src), names.index(dst), Fraction(width)) for src, dst, width in wires)
    able = {ranks + index: ability for index, ability in enumerate(switches.values()) if ability is not None}
    return Topology("file:drawn.json", tuple(names), ranks, links, abilities=able)


def star(switches, up, down, ranks=4):
    return [
        wire
        for rank in map(str, range(ranks))
        for switch in switches
        for wire in ((rank, switch, up), (switch, rank, down))
    ]


DRAWN = {
    "wider down": (network(4, {"s": BOTH}, star("s", 10, 20)), "10", 2),
    "one slow link": (network(4, {"s": BOTH}, [*star("s", 10, 10, 3), ("3", "s", 5), ("s", "3", 10)]), "5", 2),
    "adder beside multicaster": (
        network(4, {"a": ADDS, "m": COPIES}, [*star("am", 10, 10), ("a", "m", 10), ("m", "a", 10)]),
        "15",
        4,
    ),
    "adder, then multicaster, behind a switch": (
        network(
            4, {"p": None, "a": ADDS, "m": COPIES}, [*star("p", 10, 10), ("p", "a", 40), ("a", "m", 10), ("m", "p", 40)]
        ),
        "10",
        1,
    ),
    "up to one, down from another": (
        network(
            3, {"a": ADDS, "m": COPIES}, [(r, "a", 1) for r in "012"] + [("m", r, 1) for r in "012"] + [("a", "m", 1)]
        ),
        "1",
        1,
    ),
}


def made(topology, collective="allreduce"):
    return synthesize("in-network", topology, parse_collective(collective), None, SerialExecutor())


@pytest.mark.parametrize("name", DRAWN)
def test_drawn_networks(name):
    topology, rate, steps = DRAWN[name]
    verified = made(topology)
    assert verified.schedule.is_in_network
    assert (1 / verified.cost.time_per_byte, verified.cost.steps) == (Fraction(rate), steps)
    assert verified.cost.time_per_byte >= in_network_bound(topology, ALLREDUCE).value
    build_program(verified, LoweringOptions("oneccl-xml"))  # executes it on sets of contributions


@pytest.mark.parametrize("collective", ["reduce", "reduce_scatter", "broadcast", "allgather"])
def test_one_way_collectives_where_directions_differ(collective):
    topology, _, _ = DRAWN["wider down"]
    verified, bound = made(topology, collective), in_network_bound(topology, parse_collective(collective))
    assert verified.cost.time_per_byte == bound.value


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
    least = check_price_certificate(topology, packing.certificate)
    pairs = pairs_of_packing(packing, None)
    schedule = schedule_of_pairs(topology, ALLREDUCE, pairs, Options(), "pairs", packing.certificate)
    verified = verify(schedule)
    assert verified.cost.time_per_byte == 1 / rate_of_pairs(topology, pairs)
    assert least <= verified.cost.time_per_byte <= least * (1 + Fraction(1, 10**5))
    bound = in_network_bound(topology, ALLREDUCE).value
    assert bound <= least * (1 + Fraction(1, 10**5))
    best = made(topology)
    assert best.cost.time_per_byte <= max(bound, min(least, reduce_scatter_allgather_time(topology))) * (
        1 + Fraction(1, 10**5)
    )
    if best.schedule.certificate.get("kind") == PAIR_PRICES:
        check_price_certificate(topology, best.schedule.certificate)


def test_prices_of_a_narrower_network_prove_nothing_of_this_one():
    """Trees over equal widths both ways are compared with all others of the network itself."""
    wires = [*(("1", "0", 1), ("2", "0", 6), ("3", "0", 3), ("0", "1", 1), ("3", "1", 6), ("s", "1", 4))]
    wires += [*(("0", "2", 3), ("3", "2", 3), ("0", "3", 3), ("1", "3", 6), ("2", "3", 3), ("1", "s", 4))]
    topology = network(4, {"s": replace(BOTH, reduce_bandwidth=Fraction(1, 2))}, wires)
    verified = made(topology)
    assert verified.schedule.certificate["kind"] != PAIR_PRICES, "those of the narrower network say 1/5"
    assert check_certificate(topology, ALLREDUCE, verified.schedule.certificate) == Fraction(4, 23)


@pytest.mark.parametrize(
    "change",
    [
        {"time_per_byte": "1/16"},
        {"prices": [0] * 18},
        {"prices": [1] * 17},
        {"prices": [-1] * 18},
        {"prices": [True] * 18},
        {"sum_prices": {"a": 1}},  # it adds without a limit
        {"sum_prices": None},
        {"kind": "into"},
    ],
    ids=str,
)
def test_wrong_certificates_are_refused(change):
    topology, _, _ = DRAWN["adder beside multicaster"]
    certificate = pair_packing(topology, Fraction(100)).certificate
    assert check_price_certificate(topology, certificate) == Fraction(1, 15)
    if change == {"time_per_byte": "1/16"}:
        assert check_price_certificate(topology, certificate | change) == Fraction(1, 16)
        change = {"time_per_byte": "1/14"}
    with pytest.raises(CheckFailed):
        check_price_certificate(topology, certificate | change)
