"""Schedules in finer and coarser chunks are the same schedules."""

from fractions import Fraction

import pytest

from chorale.synth.errors import InvalidInput
from chorale.synth.lowering.vector_layout import min_chunks, rechunked
from chorale.synth.verify.verify import verify
from tests.unit.synth.lowering.programs import verified


@pytest.mark.parametrize(("spec", "method"), [("torus:2x3", "bfb"), ("a100:1", "forest"), ("ring:5", "ring")])
@pytest.mark.parametrize("factor", [Fraction(1, 2), 1, 3, 7])
def test_costs_and_loads_stay_exactly_the_same(spec, method, factor):
    made = verified(spec, "allreduce", method)
    doubled = rechunked(made.schedule, 2 * made.schedule.chunks_per_shard)
    again = verify(rechunked(doubled, int(doubled.chunks_per_shard * factor)))
    assert again.schedule.chunks_per_shard == 2 * made.schedule.chunks_per_shard * factor
    assert (again.cost, again.link_loads) == (made.cost, made.link_loads)


def test_joined_chunks_give_back_the_schedule():
    schedule = verified("torus:2x3", "allgather").schedule
    least = min_chunks(schedule)
    assert schedule.chunks_per_shard % least == 0
    finer = rechunked(schedule, 12 * schedule.chunks_per_shard)
    assert min_chunks(finer) == least
    assert rechunked(finer, schedule.chunks_per_shard).id == schedule.id
    assert rechunked(schedule, None) is schedule


def test_chunks_that_would_cut_transfers_are_refused():
    schedule = verified("ring:4", "allgather", "biring").schedule
    assert min_chunks(schedule) == 2
    with pytest.raises(InvalidInput, match="multiple of 2, got 5; use 4"):
        rechunked(schedule, 5)
    with pytest.raises(InvalidInput, match="use 2"):
        rechunked(schedule, 0)
