"""Instances are chosen so that sizes can be cut, or the nearest sizes are named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synth.errors import InvalidInput
from synth.lowering.divisibility import chunks_of_vector, dividing
from synth.lowering.lower import lower
from synth.lowering.options import LoweringOptions
from tests.unit.synth.lowering.programs import verified

RING = verified("ring:5", "allreduce", "ring").schedule


@pytest.mark.parametrize("collective", ["allgather", "reduce_scatter", "allreduce"])
@pytest.mark.parametrize("instances", [1, 3])
def test_the_chunks_are_those_of_the_program(collective, instances):
    schedule = verified("torus:2x3", collective)
    made = lower(schedule, LoweringOptions("oneccl-xml", instances=instances))
    assert chunks_of_vector(schedule.schedule, instances) == made.chunks


@given(st.lists(st.integers(1, 400), min_size=1, max_size=4), st.integers(1, 6), st.sampled_from([1, 2, 4, 16]))
def test_the_most_instances_that_divide_are_taken(multiples, asked, granule):
    single = chunks_of_vector(RING, 1)
    sizes = [multiple * single * granule for multiple in multiples]
    chosen = dividing(RING, LoweringOptions("oneccl-xml", instances=asked), sizes, granule)
    fitting = [n for n in range(1, asked + 1) if all(size % (single * n * granule) == 0 for size in sizes)]
    assert chosen.instances == max(fitting)
    assert (chosen.min_bytes, chosen.max_bytes) == (min(sizes), max(sizes))


def test_the_nearest_sizes_are_named():
    with pytest.raises(InvalidInput, match=r"multiples of 20 bytes.*got 1024; use 1020 or 1040 bytes"):
        dividing(RING, LoweringOptions("msccl-xml", instances=2), [40, 1024], 4)
    with pytest.raises(InvalidInput, match=r"got 3; use 20 bytes"):
        dividing(RING, LoweringOptions("msccl-xml"), [3], 4)
