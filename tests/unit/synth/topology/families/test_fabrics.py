"""Switched and GPU fabrics: links by their definition, symmetries and sizes."""

import re
from collections import Counter
from collections.abc import Callable, Iterable
from fractions import Fraction
from itertools import combinations

import pytest

from chorale.synth.topology.registry import parse_spec
from chorale.synth.topology.spec import FAMILIES, parse_topology
from chorale.synth.topology.topology import Topology, automorphisms_are_transitive, is_automorphism

Wires = Counter[tuple[str, str, Fraction]]


def wires_of(topology: Topology) -> Wires:
    ids = topology.node_ids
    return Counter((ids[link.src], ids[link.dst], link.bandwidth) for link in topology.links)


def both_ways(wires: Iterable[tuple[str, str, int | Fraction]]) -> Wires:
    return Counter(
        end for one, other, rate in wires for end in ((one, other, Fraction(rate)), (other, one, Fraction(rate)))
    )


def dgx(boxes: int, nvswitch: int, nic: int, joint: Callable[[int], str]) -> Wires:
    wires: list[tuple[str, str, int]] = []
    for box in range(boxes):
        for gpu in range(8):
            place = f"{box}.{gpu}"
            wires.append((place, f"nvswitch:{box}", nvswitch))
            if boxes > 1:
                wires += [(place, f"nic:{place}", nic), (f"nic:{place}", joint(gpu), nic)]
    return both_ways(wires)


@pytest.mark.parametrize("boxes", [1, 3])
def test_dgx(boxes):
    assert wires_of(parse_topology(f"a100:{boxes}")) == dgx(boxes, 300, 25, lambda gpu: f"ib:{gpu % 2}")
    assert wires_of(parse_topology(f"h100:{boxes}")) == dgx(boxes, 450, 50, lambda gpu: f"rail:{gpu}")


MI250 = """0-1:4 2-3:4 4-5:4 6-7:4 8-9:4 10-11:4 12-13:4 14-15:4 0-4:2 3-7:2 8-12:2 11-15:2 0-8:1 1-5:1 1-9:1 1-10:1
2-6:1 2-9:1 2-10:1 3-11:1 4-6:1 5-6:1 5-7:1 9-13:1 10-14:1 12-14:1 13-14:1 13-15:1"""


@pytest.mark.parametrize("boxes", [1, 3])
@pytest.mark.parametrize(("family", "gpus"), [("mi250", 16), ("mi250half", 8)])
def test_mi250(family, gpus, boxes):
    wires: list[tuple[str, str, int]] = []
    for box in range(boxes):
        for bundle in MI250.split():
            ends, count = bundle.split(":")
            one, other = map(int, ends.split("-"))
            if max(one, other) < gpus:
                wires.append((f"{box}.{one}", f"{box}.{other}", 50 * int(count)))
        wires += [(f"{box}.{gpu}", "ib:0", 16) for gpu in range(gpus) if boxes > 1]
    assert wires_of(parse_topology(f"{family}:{boxes}")) == both_ways(wires)


@pytest.mark.parametrize("boxes", [1, 3])
def test_mi300x(boxes):
    wires: list[tuple[str, str, int]] = []
    for box in range(boxes):
        wires += [(f"{box}.{one}", f"{box}.{other}", 64) for one, other in combinations(range(8), 2)]
        for gpu in range(8 if boxes > 1 else 0):
            wires += [(f"{box}.{gpu}", f"nic:{box}.{gpu}", 50), (f"nic:{box}.{gpu}", "ib:0", 50)]
    assert wires_of(parse_topology(f"mi300x:{boxes}")) == both_ways(wires)


@pytest.mark.parametrize("k", [2, 6])
def test_fattree(k):
    half = k // 2
    wires: list[tuple[str, str, int]] = []
    for pod in range(k):
        for edge in range(half):
            wires += [(f"{pod}.{edge}.{host}", f"edge:{pod}.{edge}", 25) for host in range(half)]
            wires += [(f"edge:{pod}.{edge}", f"agg:{pod}.{up}", 25) for up in range(half)]
            wires += [(f"agg:{pod}.{edge}", f"core:{edge}.{core}", 25) for core in range(half)]
    topology = parse_topology(f"fattree:{k}")
    assert wires_of(topology) == both_ways(wires)
    assert topology.compute_count == k**3 // 4
    ports = Counter(topology.node_ids[link.src] for link in topology.links)
    assert {ports[switch] for switch in topology.node_ids[topology.compute_count :]} == {k}


@pytest.mark.parametrize(("a", "p", "h"), [(4, 2, 2), (2, 3, 1), (1, 2, 4)])
def test_dragonfly(a, p, h):
    topology = parse_topology(f"dragonfly:{a},{p},{h}")
    found = wires_of(topology)
    assert {rate for _, _, rate in found} == {Fraction(25)}
    assert set(found.values()) == {1}
    groups = a * h + 1
    local = both_ways(
        (f"router:{group}.{one}", f"router:{group}.{other}", 25)
        for group in range(groups)
        for one, other in combinations(range(a), 2)
    )
    hosts = both_ways(
        (f"{group}.{router}.{host}", f"router:{group}.{router}", 25)
        for group in range(groups)
        for router in range(a)
        for host in range(p)
    )
    assert local + hosts <= found
    between = found - local - hosts
    group_pairs = Counter(tuple(int(re.findall(r"\d+", end)[0]) for end in wire[:2]) for wire in between)
    assert group_pairs == Counter((one, other) for one in range(groups) for other in range(groups) if one != other)
    assert set(Counter(src for src, _, _ in between).values()) == {h}
    assert all((dst, src, rate) in between for src, dst, rate in between)


@pytest.mark.parametrize(("boxes", "gpus", "nic", "spines"), [(3, 4, "50", 2), (2, 2, "25/3", 5), (4, 8, "12.5", 0)])
def test_railclos(boxes, gpus, nic, spines):
    rate = Fraction(nic)
    wires: list[tuple[str, str, int | Fraction]] = []
    for box in range(boxes):
        for gpu in range(gpus):
            place = f"{box}.{gpu}"
            wires += [(place, f"nvswitch:{box}", 450), (place, f"nic:{place}", rate)]
            wires.append((f"nic:{place}", f"rail:{gpu}", rate))
    for gpu in range(gpus):
        wires += [(f"rail:{gpu}", f"spine:{spine}", boxes * rate / spines) for spine in range(spines)]
    assert wires_of(parse_topology(f"railclos:{boxes},{gpus},{nic},{spines}")) == both_ways(wires)


def test_switches_that_join_nothing_are_left_out():
    assert parse_topology("railclos:4,1,50,3").node_ids[4:] == (*(f"nic:{box}.0" for box in range(4)), "rail:0")
    assert parse_topology("railclos:1,4,50,2").node_ids[4:] == ("nvswitch:0",)


def test_switch():
    assert wires_of(parse_topology("switch:3,12.5")) == both_ways(
        (str(node), "switch:0", Fraction(25, 2)) for node in range(3)
    )


@pytest.mark.parametrize(
    "spec",
    ["switch:5,3/7", "a100:1", "a100:3", "mi250half:2", "mi300x:2", "fattree:4", "fattree:2", "dragonfly:3,2,2",
     "railclos:3,4,50,2", "railclos:1,2,50,2", "railclos:2,1,50,2"],
)  # fmt: skip
def test_every_fabric(spec):
    topology = parse_topology(spec)
    tree = parse_spec(spec)
    plan = FAMILIES[tree.name].plan(tree)
    assert (plan.nodes, plan.links) == (topology.node_count, len(topology.links))
    assert topology.bandwidth_unit == "GB/s"
    assert topology.is_eulerian
    assert all(is_automorphism(topology, generator) for generator in topology.automorphisms)
    identity = list(range(topology.node_count))
    assert all(generator.tolist() != identity for generator in topology.automorphisms)
    symmetric = tree.name not in ("mi250", "mi250half", "dragonfly")
    assert automorphisms_are_transitive(topology) == symmetric


def test_boxes_and_their_parts_can_fail():
    one_nic_less = parse_topology("without(a100:2;link=1.3-nic:1.3)")
    assert set(parse_topology("a100:2").node_ids) - set(one_nic_less.node_ids) == {"nic:1.3"}
    assert parse_topology("without(a100:2;node=11)").compute_count == 15
    assert "nic:1.3" not in parse_topology("without(a100:2;node=11)").node_ids
    one_box_left = parse_topology("without(a100:2;" + ";".join(f"node=1.{gpu}" for gpu in range(8)) + ")")
    infiniband = {wire: 1 for wire in wires_of(one_box_left) if "nic:" in wire[0] + wire[1]}
    assert wires_of(one_box_left) - Counter(infiniband) == wires_of(parse_topology("a100:1"))
    assert len(infiniband) == 32
    assert "nvswitch:1" not in one_box_left.node_ids
