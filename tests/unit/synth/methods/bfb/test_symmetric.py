"""Breadth-first broadcast in symmetric form against the same schedule solved and replayed for all ranks."""

from contextlib import closing
from fractions import Fraction

import pytest

from chorale.synth.collective import ALLGATHER, ALLREDUCE, ALLTOALL, REDUCE_SCATTER
from chorale.synth.errors import InvalidInput
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.executor.processes import ProcessExecutor
from chorale.synth.methods.bfb.bfb import bfb_allgather, prefers_symmetric_form, symmetric_bfb
from chorale.synth.methods.bfb.plan import certificate_of, make_plan, network_of
from chorale.synth.methods.catalog import form_of, synthesize
from chorale.synth.topology.spec import parse_topology
from chorale.synth.verify.bfb_certificate import check_bfb_steps
from chorale.synth.verify.verify import verify
from tests.symmetric_networks import symmetric_networks, unequal_torus

SERIAL = SerialExecutor()
NETWORKS = pytest.mark.parametrize("topology", symmetric_networks(), ids=lambda topology: topology.spec)


@NETWORKS
@pytest.mark.parametrize("collective", [ALLGATHER, REDUCE_SCATTER, ALLREDUCE], ids=str)
def test_the_expanded_schedule_is_right_and_costs_the_same(topology, collective):
    schedule = symmetric_bfb(topology, collective, SERIAL)
    found = verify(schedule)
    expanded = verify(schedule.expand())
    assert expanded.schedule.collective == collective
    assert len(expanded.schedule.transfers) == schedule.transfer_count
    assert found.cost == expanded.cost
    assert found.link_loads == expanded.link_loads
    assert schedule.certificate == expanded.schedule.certificate
    full = synthesize("bfb", topology, collective, None, SERIAL)
    assert full.cost == expanded.cost
    assert (full.schedule.steps, full.schedule.chunks_per_shard) == (schedule.steps, schedule.chunks_per_shard)


@NETWORKS
def test_rank_0_receives_what_the_full_schedule_gives_it(topology):
    base = symmetric_bfb(topology, ALLGATHER, SERIAL).gather.base
    full = bfb_allgather(topology, SERIAL)
    expected = full.transfers.select(full.dst == 0)
    for column, other in zip(base.columns, expected.columns, strict=True):
        assert column.dtype == other.dtype
        assert column.tolist() == other.tolist()


@NETWORKS
def test_the_certificate_holds_for_the_whole_network(topology):
    gather = symmetric_bfb(topology, ALLGATHER, SERIAL).gather
    check_bfb_steps(topology, gather.chunks_per_shard, gather.certificate)


def test_processes_give_the_same_schedule():
    topology = unequal_torus()
    with closing(ProcessExecutor(2)) as processes:
        assert symmetric_bfb(topology, ALLREDUCE, processes).id == symmetric_bfb(topology, ALLREDUCE, SERIAL).id


@pytest.mark.parametrize("spec", ["torus:8x8", "hypercube:9", "hamming:2,10", "distreg:4,189", "distreg:4,728"])
def test_large_networks_are_solved_for_one_rank_at_the_same_cost(spec):
    """Node by node and by the shortcut: the same steps, chunks and step times."""
    topology = parse_topology(spec)
    verified = verify(bfb_allgather(topology, SERIAL))
    plan = make_plan(network_of(topology), SERIAL, None, None)
    assert (verified.schedule.steps, verified.schedule.chunks_per_shard) == (plan.steps, plan.chunks)
    assert verified.schedule.certificate == certificate_of(plan)
    shard = Fraction(1, topology.compute_count * plan.chunks)
    assert verified.cost.time_per_byte == shard * sum(
        Fraction(entry["value"]) for entry in certificate_of(plan)["times"]
    )


def test_sixteen_thousand_nodes():
    topology = parse_topology("torus:128x128")
    verified = verify(symmetric_bfb(topology, ALLGATHER, SERIAL))
    assert verified.cost.steps == 128
    assert verified.cost.time_per_byte == verified.link_loads.largest
    assert str(verified.cost.bandwidth_factor) == "16383/16384"


@pytest.mark.parametrize(
    ("spec", "preferred"),
    [("torus:23x22", False), ("torus:32x16", True), ("mesh:32x16", False), ("genkautz:4,512", False)],
)
def test_the_form_is_chosen_by_size_and_symmetry(spec, preferred):
    topology = parse_topology(spec)
    assert prefers_symmetric_form(topology) is preferred
    assert form_of("bfb", topology) == ("symmetric" if preferred else "columns")
    assert form_of("ring", topology) == "columns"


@pytest.mark.parametrize("spec", ["mesh:3x3", "genkautz:2,9"])
def test_networks_without_known_symmetries_are_refused(spec):
    with pytest.raises(InvalidInput, match="symmetries"):
        symmetric_bfb(parse_topology(spec), ALLGATHER, SERIAL)


def test_other_collectives_are_refused():
    with pytest.raises(
        InvalidInput,
        match="the symmetric form is for allgather, reduce_scatter or",
    ):
        symmetric_bfb(parse_topology("ring:5"), ALLTOALL, SERIAL)
