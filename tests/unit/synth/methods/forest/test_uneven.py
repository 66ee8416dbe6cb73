"""Allgather and reduce-scatter of given sizes: at the bound of all cuts, verified, with certificates that hold."""

from dataclasses import replace
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from chorale.synth.bounds.certificate import check_certificate
from chorale.synth.build.build import build_program
from chorale.synth.collective import CollectiveName
from chorale.synth.errors import CheckFailed, InvalidInput
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.methods.forest.forest import MAX_UNITS, shard_units, uneven_forest, uneven_optimum
from chorale.synth.topology.spec import parse_topology
from chorale.synth.verify.verify import inspect, verify
from tests.properties import random_cases
from tests.strategies import strongly_connected_topologies

GATHER, SCATTER = CollectiveName.ALLGATHER, CollectiveName.REDUCE_SCATTER


def least_by_cuts(topology, sizes, outward):
    """Return the largest time per byte that a cut allows, over all cuts."""
    best, links = Fraction(0), topology.links
    near, far = (links.src, links.dst) if outward else (links.dst, links.src)
    widths = [links.bandwidths[number] for number in links.bandwidth_class.tolist()]
    for count in range(1, topology.node_count):
        for cut in combinations(range(topology.node_count), count):
            inside = np.isin(np.arange(topology.node_count), cut)
            if not inside[: len(sizes)].any():
                continue
            width = sum(widths[link] for link in np.flatnonzero(inside[near] & ~inside[far]))
            outside = sum(size for rank, size in enumerate(sizes) if not inside[rank])
            if outside:
                best = max(best, outside / width)
    return best / sum(sizes)


@given(strongly_connected_topologies(2, 5, switches=1), st.data())
@random_cases(12)
def test_schedules_take_what_the_narrowest_cut_needs(topology, data):
    ranks = topology.compute_count
    sizes = data.draw(st.lists(st.integers(0, 9), min_size=ranks, max_size=ranks).filter(any))
    assume(sum(size > 0 for size in sizes) > 1)
    for name, outward in ((GATHER, False), (SCATTER, True)):
        best = uneven_optimum(topology, name, sizes)
        assert best.bound.value == least_by_cuts(topology, sizes, outward)
        assert check_certificate(topology, best.collective, best.bound.to_json(topology)) == best.bound.value
        time = verify(uneven_forest(topology, name, sizes)).cost.time_per_byte
        assert time >= best.bound.value
        assert time == best.bound.value or (topology.switch_count and not topology.is_eulerian)  # it cannot copy


@pytest.mark.parametrize("name", [GATHER, SCATTER])
def test_programs_do_what_the_schedule_says(name):
    verified = verify(uneven_forest(parse_topology("ring:4"), name, [3, 0, 1, 2]))
    custom = build_program(verified, LoweringOptions("msccl-xml")).program.collective.custom
    trees = max(verified.schedule.collective.sizes) // 3
    assert sum(len(list(custom.required_of(rank))) for rank in range(4)) == 6 * trees * (4 if name == GATHER else 1)
    assert {len(each.sources) for each in custom.required} == {1 if name == GATHER else 4}


@pytest.mark.parametrize("name", [GATHER, SCATTER])
def test_every_row_is_needed(name):
    schedule = uneven_forest(parse_topology("ring:4"), name, [3, 0, 1, 2])
    for row in range(len(schedule.transfers)):
        kept = np.arange(len(schedule.transfers)) != row
        assert inspect(replace(schedule, transfers=schedule.transfers.select(kept)))[0]


def test_units():
    assert shard_units([10**9 + 7, 5, 0]).counts == (MAX_UNITS, 1, 0)
    assert shard_units([4096, 1]).unit == 1


def test_what_cannot_be_is_refused():
    ring = parse_topology("ring:4")
    with pytest.raises(InvalidInput, match="only allgather and reduce_scatter take sizes of shards, got broadcast"):
        uneven_optimum(ring, CollectiveName.BROADCAST, [1] * 4)
    with pytest.raises(InvalidInput, match="sizes of shards must be 4, one per rank"):
        uneven_optimum(ring, GATHER, [1] * 3)
    best = uneven_optimum(ring, GATHER, [3, 0, 1, 2])
    forged = {**best.bound.to_json(ring), "time_per_byte": str(best.bound.value * 2)}
    with pytest.raises(CheckFailed):
        check_certificate(ring, best.collective, forged)
