"""Bounds where switches multicast and add: golden rates, all partitions, certificates that are tampered with."""

from fractions import Fraction

import pytest

from chorale.experiments.ours.quality import random_able_fabric
from chorale.synth.bounds.certificate import check_certificate
from chorale.synth.bounds.lower_bound import in_network_bound, lower_bound
from chorale.synth.collective import ALLREDUCE, parse_collective
from chorale.synth.errors import CheckFailed
from chorale.synth.topology.spec import parse_topology
from tests.reference.best_groups import best_rate_by_groups

GOLDEN = [
    ("switch:8,450", "1800/7", None),
    ("able(switch:8,450)", "1800/7", "450"),
    ("h100:1", "1800/7", "450"),
    ("h100:2", "800/3", "400"),
    ("h100:4", "8000/31", "800/3"),
    ("h100:5", "250", "250"),
    ("h100:16", "640/3", "640/3"),
    ("h200:2", "800/3", "400"),
    ("able(h100:2;switch=rail)", "800/3", "400"),
    ("able(h100:4;switch=rail)", "8000/31", "400"),
    ("able(h100:5;switch=rail)", "250", "400"),
    ("nvl72:1", "32400/71", "900"),
    ("nvl72:2", "68400/143", "131400/143"),
    ("nvl72:16", "547200/1151", "1051200/1151"),
    ("able(nvl72:2;switch=rail)", "68400/143", "131400/143"),
    ("able(fattree:4)", "40/3", "25"),
    ("scaled(h100:1;link=0-nvswitch:0;factor=1/2)", "225", "225"),
    ("able(a100:3;switch=nvswitch)", "150", "150"),
]


@pytest.mark.parametrize(("spec", "alone", "in_network"), GOLDEN)
def test_golden_rates(spec, alone, in_network):
    topology = parse_topology(spec)
    assert 1 / lower_bound(topology, ALLREDUCE).value == Fraction(alone)
    bound = in_network_bound(topology, ALLREDUCE)
    assert (None if bound is None else 1 / bound.value) == (None if in_network is None else Fraction(in_network))
    if bound is not None:
        assert check_certificate(topology, ALLREDUCE, bound.to_json(topology)) == bound.value


def test_rails_that_add_help_many_racks():
    bound = in_network_bound(parse_topology("able(nvl72:16;switch=rail)"), ALLREDUCE)
    assert 1 / bound.value == Fraction(2152800, 2302)


@pytest.mark.parametrize("ability", ["multicast=no", "reduce=no"])
def test_a_single_ability_of_a_switch_gains_nothing(ability):
    topology = parse_topology(f"able(switch:8,450;{ability})")
    assert in_network_bound(topology, ALLREDUCE).value == lower_bound(topology, ALLREDUCE).value


@pytest.mark.parametrize(("sums", "rate"), [("100", "300"), ("449", "3147/7"), ("450", "450"), ("1", "1803/7")])
def test_adding_at_a_limited_rate(sums, rate):
    """s + (c - s) N / (2 (N - 1)), for N = 8 at c = 450."""
    topology = parse_topology(f"able(switch:8,450;reduce-bandwidth={sums})")
    bound = in_network_bound(topology, ALLREDUCE)
    expected = min(Fraction(450), Fraction(sums) + (450 - Fraction(sums)) * Fraction(8, 14))
    assert 1 / bound.value == expected == Fraction(rate)
    check_certificate(topology, ALLREDUCE, bound.to_json(topology))


@pytest.mark.parametrize("name", ["allgather", "reduce_scatter", "broadcast", "reduce", "alltoall"])
def test_cuts_bound_the_other_collectives_whatever_switches_do(name):
    topology, collective = parse_topology("h100:2"), parse_collective(name)
    assert in_network_bound(topology, collective).value == lower_bound(topology, collective).value


@pytest.mark.parametrize("seed", range(60))
def test_as_good_as_all_cuts_and_partitions(seed):
    topology = random_able_fabric(seed, most_ranks=5, most_switches=3)
    bound = in_network_bound(topology, ALLREDUCE)
    assert check_certificate(topology, ALLREDUCE, bound.to_json(topology)) == bound.value
    assert 1 / bound.value == best_rate_by_groups(topology)


def certificate_of(spec):
    topology = parse_topology(spec)
    return topology, dict(in_network_bound(topology, ALLREDUCE).to_json(topology))


@pytest.mark.parametrize(
    "change",
    [
        {"in_network": False, "parts": []},  # of ranks alone: h100:4 cannot be that slow
        {"parts": [["0.0", "nvswitch:0"]]},  # an able switch in no group
        {"time_per_byte": "1/260"},
        {"parts": [[f"{box}.{gpu}" for gpu in range(8)] for box in range(4)]},
    ],
)
def test_wrong_certificates_are_refused(change):
    topology, certificate = certificate_of("h100:4")
    assert certificate["in_network"] is True
    if "in_network" in change:
        certificate["time_per_byte"] = "1/257"
    with pytest.raises(CheckFailed):
        check_certificate(topology, ALLREDUCE, certificate | change)


def test_a_switch_that_adds_cannot_be_in_two_groups():
    topology, certificate = certificate_of("h100:4")
    certificate["parts"] = [[*part, "nvswitch:0"] if index else part for index, part in enumerate(certificate["parts"])]
    with pytest.raises(CheckFailed):
        check_certificate(topology, ALLREDUCE, certificate)


def test_a_certificate_of_ranks_alone_says_nothing_of_switches():
    topology = parse_topology("h100:2")
    alone = dict(lower_bound(topology, ALLREDUCE).to_json(topology))
    assert check_certificate(topology, ALLREDUCE, alone) == Fraction(3, 800)
    with pytest.raises(CheckFailed):
        check_certificate(topology, ALLREDUCE, alone | {"in_network": True})
