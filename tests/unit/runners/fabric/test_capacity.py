"""Fabrics beyond the CPU are refused with a rate that would do; what was carried once is not measured again."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pytest

from chorale.runners.fabric import probe as capacity
from chorale.runners.fabric.probe import CarriedRate, require_capacity
from chorale.synth.errors import InvalidInput
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology

RING = parse_topology("ring:4")  # eight links


class Machine:
    """Carries so many Mbit/s in all, and counts how often it was asked."""

    def __init__(self, mbps: float, monkeypatch: pytest.MonkeyPatch) -> None:
        self.mbps = mbps
        self.probes: list[Fraction] = []
        monkeypatch.setattr(capacity, "probe", self.probe)

    def probe(self, topology: Topology, link_mbps: Fraction, name: str) -> CarriedRate:
        self.probes.append(link_mbps)
        ideal = int(len(topology.links) * link_mbps * 10**6)
        return CarriedRate(min(ideal, int(self.mbps * 1e6)), ideal)


def test_links_are_probed_at_twice_their_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(1300, monkeypatch)
    require_capacity(RING, Fraction(100), "x", tmp_path)
    assert machine.probes == [200]


def test_a_refusal_names_what_is_carried_and_a_rate_that_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(1200, monkeypatch)
    with pytest.raises(InvalidInput) as refusal:
        require_capacity(RING, Fraction(100), "x", tmp_path)
    assert machine.probes == [200, 200]
    assert str(refusal.value) == (
        "this machine carries about 600 Mbit/s over all links of such a fabric together; got 800 Mbit/s; "
        "take --link-mbps 50, or --force to bring it up all the same"
    )
    require_capacity(RING, Fraction(50), "x", tmp_path)


def test_a_hopeless_machine_is_told_the_smallest_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Machine(0, monkeypatch)
    with pytest.raises(InvalidInput, match=r"take --link-mbps 0\.1, or"):
        require_capacity(RING, Fraction(100), "x", tmp_path)


def test_what_was_carried_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "not" / "there"
    machine = Machine(1600, monkeypatch)
    require_capacity(RING, Fraction(50), "x", home)
    require_capacity(RING, Fraction(50), "y", home)
    require_capacity(RING, Fraction(20), "x", home)
    assert len(machine.probes) == 1
    require_capacity(RING, Fraction(100), "x", home)
    require_capacity(parse_topology("ring:5"), Fraction(20), "x", home)
    assert len(machine.probes) == 3
    (networks,) = json.loads((home / "fabric-rates.json").read_text()).values()
    assert networks == {"4 nodes, 8 links": 800_000_000, "5 nodes, 10 links": 200_000_000}


def test_a_refusal_is_measured_every_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(1000, monkeypatch)
    with pytest.raises(InvalidInput):
        require_capacity(RING, Fraction(100), "x", tmp_path)
    machine.mbps = 1600
    require_capacity(RING, Fraction(100), "x", tmp_path)
