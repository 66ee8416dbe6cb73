"""From a spec to an expanded schedule: the published results, other collectives, and what is refused."""

from fractions import Fraction

import pytest

from chorale.synth.collective import ALLGATHER, ALLREDUCE, REDUCE_SCATTER
from chorale.synth.errors import InvalidInput
from chorale.synth.methods.catalog import synthesize, synthesize_unverified
from chorale.synth.methods.expand import schedules
from chorale.synth.methods.expand.expand import (
    base_allgather,
    base_schedule_builder,
    expand_allgather,
    expanded_schedule,
    expansion_plan,
    stored_allgather,
)
from chorale.synth.methods.expand.prediction import predict_allgather
from chorale.synth.methods.method import Options
from chorale.synth.topology.grammar import parse_spec
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology, transpose
from chorale.synth.verify.verify import verify
from tests.unit.synth.methods.expand.networks import SERIAL

PUBLISHED = [  # tables 5 and 7 of the paper, and theorem 12
    ("diamond", 3, "7/8"),
    ("line(bipartite:4)", 3, "1"),
    ("line(dbjmod:4,2)", 4, "1"),
    ("power(diamond;2)", 6, "63/64"),
    ("line(bipartite:4;2)", 4, "33/32"),
    ("product(biring:2,8;power(uniring:1,4;2))", 10, "127/128"),
    ("line(dbjmod:4,2;2)", 5, "65/64"),
    ("line(power(diamond;2))", 7, "1"),
    ("power(dbjmod:2,4;2)", 10, "255/256"),
    ("line(bipartite:4;3)", 5, "133/128"),
    ("line(product(power(uniring:1,4;3);uniring:1,2))", 11, "1"),
    ("product(power(uniring:1,4;3);uniring:1,8)", 16, "511/512"),
    ("line(circulant:16,3,4;3)", 6, "261/256"),
    ("line(power(diamond;2);2)", 8, "257/256"),
    ("line(power(dbjmod:2,4;2))", 11, "1"),
    ("power(product(uniring:1,4;uniring:1,8);2)", 20, "1023/1024"),
    ("degree(complete:3;2)", 2, "5/6"),
    ("degree(biring:2,5;2)", 3, "9/10"),  # table 5 prints 2 steps, which BFB on the expanded network takes
]


@pytest.mark.parametrize(("spec", "steps", "factor"), PUBLISHED)
def test_published_results(spec, steps, factor):
    verified = synthesize("expand", parse_topology(spec), ALLGATHER, None, SERIAL)
    predicted = predict_allgather(spec, SERIAL)
    assert (verified.cost.steps, verified.cost.bandwidth_factor) == (steps, Fraction(factor))
    assert (predicted.steps, predicted.bandwidth_factor) == (steps, Fraction(factor))
    assert verified.link_loads.duplicate_deliveries == 0


@pytest.mark.parametrize(
    ("spec", "steps", "factor"),
    [
        ("dbjmod:2,3", 8, "7/4"),
        ("line(dbjmod:3,2)", 8, "2"),
        ("power(diamond;2)", 12, "63/32"),
        ("line(dbjmod:4,2;2)", 10, "65/32"),
        ("line(power(dbjmod:2,4;2))", 22, "2"),
        ("bidirectional(diamond)", 6, "7/4"),
        ("bidirectional(line(dbjmod:2,4))", 12, "2"),
    ],
)
def test_an_allreduce_costs_twice_as_much(spec, steps, factor):
    cost = synthesize("expand", parse_topology(spec), ALLREDUCE, None, SERIAL).cost
    assert (cost.steps, cost.bandwidth_factor) == (steps, Fraction(factor))


def test_bfb_on_the_expanded_network_takes_fewer_steps():
    topology = parse_topology("degree(biring:2,5;2)")
    cost = synthesize("bfb", topology, ALLGATHER, None, SERIAL).cost
    assert (cost.steps, cost.bandwidth_factor) == (2, Fraction(9, 10))


EXPANSIONS = [
    "line(diamond)",
    "line(diamond;2)",
    "degree(diamond;2)",
    "power(diamond;2)",
    "product(diamond;diamond)",
    "bidirectional(diamond)",
    "transpose(line(diamond;2))",
    "transpose(degree(line(transpose(kautz:2,2));2))",
    "line(bidirectional(line(kautz:2,2)))",
    "bidirectional(power(line(uniring:2,3);2))",
    "power(bidirectional(line(transpose(dbjmod:2,3)));1)",
    "line(transpose(line(genkautz:2,7)))",
    "line(mesh:2x3;2)",
    "transpose(line(without(torus:3x3;node=4)))",
    "degree(without(ring:5;link=0>1);3)",
    "product(dbjmod:2,3;dbjmod:2,3)",
]


@pytest.mark.parametrize("spec", EXPANSIONS)
def test_every_collective_on_nested_expansions(spec):
    topology = parse_topology(spec)
    scatter = synthesize("expand", topology, REDUCE_SCATTER, None, SERIAL).cost
    assert scatter == synthesize("expand", transpose(topology), ALLGATHER, None, SERIAL).cost
    assert synthesize("expand", topology, ALLREDUCE, None, SERIAL).schedule.topology.id == topology.id


def test_bases_use_their_own_schedule_its_mirror_image_or_bfb():
    def told(spec):
        schedule = expand_allgather(parse_topology(spec), SERIAL)
        return schedule.parameters["base_method"], verify(schedule).cost.bandwidth_factor

    assert told("line(base:diamond)") == ("own", 1)
    assert told("transpose(dbjmod:2,3)") == ("mirrored", Fraction(7, 8))
    assert told("transpose(transpose(diamond))") == ("own", Fraction(7, 8))
    assert told("transpose(diamond)") == ("own", Fraction(7, 8))
    assert told("line(base:d3)") == ("bfb", 1)


def test_the_own_schedule_is_found_whatever_the_spec():
    diamond = parse_topology("diamond")
    again = Topology("file:fabric.json", diamond.node_ids, 8, diamond.links)
    assert stored_allgather(again) is not None
    assert verify(base_allgather(again, SERIAL, None)).cost.bandwidth_factor == Fraction(7, 8)


def test_chunks_are_cut_on_request():
    topology = parse_topology("power(diamond;2)")
    natural, finer = (
        synthesize("expand", topology, ALLGATHER, Options(chunks=chunks), SERIAL) for chunks in (None, 12)
    )
    assert (natural.schedule.chunks_per_shard, finer.schedule.chunks_per_shard) == (4, 12)
    assert natural.cost == finer.cost
    assert finer.schedule.parameters["chunks"] == 12


@pytest.mark.parametrize(
    ("spec", "chunks", "message"),
    [
        ("torus:4x4", None, "expand needs an expansion or a base with a schedule, not"),
        ("transpose(ring:4)", None, "expand needs an expansion or a base with a schedule, not"),
        ("without(line(ring:4);node=0)", None, "expand needs an expansion or a base with a schedule, not"),
        ("power(diamond;2)", 6, "must be a multiple of 4"),
        ("power(diamond;2)", 0, "must be a multiple of 4"),
        ("power(diamond;2)", -4, "must be a multiple of 4"),
        ("line(ring:4;12)", None, "must have at most 134217728 transfers, got 268419072 on "),
    ],
)
def test_what_is_refused(spec, chunks, message):
    with pytest.raises(InvalidInput, match=message):
        synthesize_unverified("expand", parse_topology(spec), ALLGATHER, Options(chunks=chunks), SERIAL)


@pytest.mark.parametrize("spec", ["line(diamond)", "degree(diamond;3)", "power(diamond;2)"])
def test_nothing_too_large_is_made(spec, monkeypatch):
    topology = parse_topology(spec)
    needed = len(expand_allgather(topology, SERIAL).transfers)
    recipe = expansion_plan(parse_spec(spec))
    monkeypatch.setattr(schedules, "MAX_TRANSFERS", needed - 1)
    with pytest.raises(InvalidInput, match=f"must have at most {needed - 1} transfers"):
        expanded_schedule(recipe, base_schedule_builder(SERIAL))
    monkeypatch.setattr(schedules, "MAX_TRANSFERS", 2 * needed)
    assert len(expanded_schedule(recipe, base_schedule_builder(SERIAL)).transfers) == needed


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("line(file:fabric.json)", "expand needs a base of the database, not"),
        ("line(ring:4)", "the network is not what its spec says"),
        ("degree(ring:4)", "must be a whole number"),
        ("power(3;3)", "must be a topology spec"),
        ("line(nonsense:3)", "unknown topology family 'nonsense'"),
    ],
)
def test_networks_with_a_spec_that_is_not_theirs(spec, message):
    diamond = parse_topology("diamond")
    with pytest.raises(InvalidInput, match=message):
        expand_allgather(Topology(spec, diamond.node_ids, 8, diamond.links), SERIAL)
