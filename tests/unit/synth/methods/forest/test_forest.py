"""Schedules of trees: as fast as the bound, whatever the fabric."""

from contextlib import closing
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from chorale.synth.bounds.certificate import check_certificate
from chorale.synth.bounds.lower_bound import lower_bound
from chorale.synth.bounds.optimum import fixed_k_optimum
from chorale.synth.collective import ALLGATHER, ALLREDUCE, REDUCE_SCATTER, Collective, CollectiveName
from chorale.synth.errors import InvalidInput
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.executor.processes import ProcessExecutor
from chorale.synth.methods.catalog import synthesize
from chorale.synth.methods.method import Options
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology
from tests.properties import random_cases
from tests.random_fabrics import random_fabric

SERIAL = SerialExecutor()


def made(topology: Topology | str, collective: Collective = ALLGATHER, method: str = "forest", **options):
    network = parse_topology(topology) if isinstance(topology, str) else topology
    return synthesize(method, network, collective, Options(**options), SERIAL)


@pytest.mark.parametrize(
    ("spec", "k", "algbw"),
    [
        ("a100:2", None, Fraction(1040, 3)),
        ("mi250:1", None, Fraction(2400, 7)),
        ("mi250:2", None, Fraction(5312, 15)),
        ("mi250:2", 1, Fraction(320)),
    ],
)
def test_published_bandwidths(spec, k, algbw):
    assert 1 / made(spec, k=k).cost.time_per_byte == algbw


@random_cases(60)
@example(32465, "allgather")  # its route table is a part of its links
@given(st.integers(0, 10**6), st.sampled_from(["allgather", "reduce_scatter", "broadcast", "reduce"]))
def test_any_fabric_reaches_its_bound(seed, name):
    topology = random_fabric(seed)
    rooted = name in ("broadcast", "reduce")
    collective = Collective(CollectiveName(name), seed % topology.compute_count if rooted else None)
    verified = made(topology, collective, gap=0)
    bound = lower_bound(topology, collective)
    check_certificate(topology, collective, bound.to_json(topology))
    assert verified.cost.time_per_byte == bound.value


@random_cases(40)
@given(st.integers(0, 10**6), st.integers(1, 3))
def test_any_fabric_reaches_its_optimum_for_a_given_k(seed, k):
    topology = random_fabric(seed)
    best = fixed_k_optimum(topology, ALLGATHER, k)
    if not best.is_reached_by_trees(topology):
        return
    verified = made(topology, k=k)
    assert verified.schedule.trees_per_root == k
    assert verified.cost.time_per_byte <= best.time_per_byte


def test_allreduce_takes_both_halves():
    both, half = made("a100:2", ALLREDUCE), made("a100:2", ALLGATHER)
    assert both.cost.time_per_byte == 2 * half.cost.time_per_byte
    assert made("a100:2", REDUCE_SCATTER).cost == half.cost


def test_blink_goes_through_one_root():
    through_root = made("a100:2", ALLREDUCE, method="blink")
    assert through_root.cost.time_per_byte > made("a100:2", ALLREDUCE).cost.time_per_byte
    with pytest.raises(InvalidInput, match="blink makes broadcast, reduce or allreduce"):
        made("a100:2", ALLGATHER, method="blink")


def test_no_trees_at_all_are_refused():
    with pytest.raises(InvalidInput, match="k must be at least 1"):
        made("a100:2", k=0)


def test_more_seeds_are_never_worse_and_the_same_on_any_executor():
    one, several = made("mi250:2").schedule, made("mi250:2", seeds=4).schedule
    assert several.steps <= one.steps
    wanted = Options(seeds=4)
    with closing(ProcessExecutor(2)) as executor:
        assert synthesize("forest", parse_topology("mi250:2"), ALLGATHER, wanted, executor).schedule.id == several.id


def test_at_least_one_seed_is_tried():
    with pytest.raises(InvalidInput, match="seeds"):
        made("ring:4", seeds=0)
