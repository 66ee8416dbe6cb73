"""Symmetric schedules: the rows of one rank, the limit of writing out, content ids."""

from dataclasses import replace

import numpy as np
import pytest

from chorale.synth.collective import ALLGATHER, ALLREDUCE
from chorale.synth.errors import InvalidInput
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.methods.bfb.bfb import symmetric_bfb
from chorale.synth.schedule.symmetric import SymmetricGather
from chorale.synth.topology.spec import parse_topology
from tests.symmetric_networks import symmetric_networks

SERIAL = SerialExecutor()


@pytest.mark.parametrize("topology", symmetric_networks(), ids=lambda topology: topology.spec)
def test_writing_out_gives_rank_after_rank_the_image_of_what_rank_0_receives(topology):
    schedule = symmetric_bfb(topology, ALLGATHER, SERIAL)
    gather, expanded, links = schedule.gather, schedule.expand(), topology.links
    ranks, rows = topology.compute_count, len(gather.base)
    assert np.array_equal(expanded.dst, np.repeat(np.arange(ranks), rows))
    base_links = gather.base_links()
    assert np.array_equal(
        base_links[expanded.transfers.route].reshape(ranks, rows), np.tile(gather.base.route, (ranks, 1))
    )
    assert np.array_equal(expanded.transfers.step.reshape(ranks, rows), np.tile(gather.base.step, (ranks, 1)))
    assert np.array_equal(links.bandwidth_class, links.bandwidth_class[base_links])


def test_writing_out_has_a_limit():
    schedule = symmetric_bfb(parse_topology("torus:4x3"), ALLREDUCE, SERIAL)
    assert len(schedule.expand(schedule.transfer_count).transfers) == schedule.transfer_count
    with pytest.raises(InvalidInput, match="written out up to"):
        schedule.expand(schedule.transfer_count - 1)
    with pytest.raises(InvalidInput, match="written out up to 134217728 transfers"):
        symmetric_bfb(parse_topology("torus:128x128"), ALLGATHER, SERIAL).expand()


def test_the_id_covers_rows_steps_and_symmetries():
    topology = parse_topology("torus:4x3")
    gather = symmetric_bfb(topology, ALLGATHER, SERIAL).gather
    same = SymmetricGather(topology, gather.steps, gather.chunks_per_shard, gather.base)
    assert same.id == gather.id
    fewer = replace(gather, base=gather.base.select(slice(1, None)))
    longer = replace(gather, steps=gather.steps + 1)
    other = replace(gather, topology=replace(topology, automorphisms=topology.automorphisms[::-1]))
    assert len({gather.id, fewer.id, longer.id, other.id}) == 4
