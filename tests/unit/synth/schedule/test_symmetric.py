"""Symmetric schedules: the rows of one rank, the limit of writing out, content ids."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from chorale.synth.collective import ALLGATHER, ALLREDUCE, REDUCE_SCATTER
from chorale.synth.errors import InvalidInput
from chorale.synth.executor.serial import SerialExecutor
from chorale.synth.methods.bfb.bfb import symmetric_bfb
from chorale.synth.schedule.symmetric import SymmetricGather
from chorale.synth.topology.spec import parse_topology
from tests.symmetric_networks import symmetric_networks

SERIAL = SerialExecutor()


@pytest.mark.parametrize("topology", symmetric_networks(), ids=lambda topology: topology.spec)
def test_every_link_carries_what_the_link_of_rank_0_does_of_which_it_is_the_image(topology):
    gather = symmetric_bfb(topology, ALLGATHER, SERIAL).gather
    links, base_links = topology.links, gather.base_links()
    for rank in range(topology.compute_count):
        rows = gather.rank_transfers(rank)
        assert set(links.dst[rows.route]) == {rank}
        assert np.array_equal(base_links[rows.route], gather.base.route)
    assert np.array_equal(links.bandwidth_class, links.bandwidth_class[base_links])


@pytest.mark.parametrize("topology", symmetric_networks(), ids=lambda topology: topology.spec)
def test_writing_out_gives_the_rows_of_rank_after_rank(topology):
    schedule = symmetric_bfb(topology, ALLGATHER, SERIAL)
    expanded = schedule.expand()
    ranks = [schedule.gather.rank_transfers(rank) for rank in range(topology.compute_count)]
    for column, *parts in zip(expanded.transfers.columns, *(rows.columns for rows in ranks), strict=True):
        assert np.array_equal(column, np.concatenate(parts))
    assert np.array_equal(expanded.dst, np.repeat(np.arange(topology.compute_count), len(schedule.gather.base)))


@pytest.mark.parametrize("topology", symmetric_networks(), ids=lambda topology: topology.spec)
@pytest.mark.parametrize("collective", [ALLGATHER, REDUCE_SCATTER, ALLREDUCE], ids=str)
def test_the_rows_of_all_ranks_together_are_the_whole_schedule(topology, collective):
    schedule = symmetric_bfb(topology, collective, SERIAL)
    expanded = schedule.expand()
    of_ranks = [schedule.rank_transfers(rank) for rank in range(topology.compute_count)]
    for rank, rows in enumerate(of_ranks):
        sums = rows.reduce == 1
        assert set(topology.links.dst[rows.route[~sums]]) <= {rank}
        assert set(topology.links.src[rows.route[sums]]) <= {rank}
        assert [column.dtype for column in rows.columns] == [column.dtype for column in expanded.transfers.columns]
    together = np.concatenate([np.column_stack(rows.columns) for rows in of_ranks])
    whole = np.column_stack(expanded.transfers.columns)
    assert np.array_equal(together[np.lexsort(together.T)], whole[np.lexsort(whole.T)])


def test_one_rank_of_many_without_the_others():
    gather = symmetric_bfb(parse_topology("hypercube:14"), ALLGATHER, SERIAL).gather
    rows = gather.rank_transfers(9999)
    assert len(rows) == len(gather.base)
    assert set(rows.shard.tolist()) == set(range(2**14)) - {9999}


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
