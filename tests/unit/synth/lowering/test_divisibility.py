"""Instances and chunks are chosen so that sizes can be cut, or the nearest sizes are named."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.errors import InvalidInput
from chorale.synth.lowering.lower import lower
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.lowering.vector_layout import options_for_sizes, rechunked
from chorale.synth.verify.verify import verify
from tests.unit.synth.lowering.programs import verified

RING = verified("ring:5", "allreduce", "ring").schedule


@given(
    st.lists(st.integers(1, 400), min_size=1, max_size=4),
    st.integers(1, 6),
    st.sampled_from([1, 2, 4, 16]),
    st.sampled_from([None, 1, 2, 6]),
)
def test_the_most_instances_and_then_the_most_chunks_that_divide_are_taken(multiples, asked, granule, chunks):
    schedule = rechunked(RING, 4)
    single = 5  # chunks of the vector, one per shard
    sizes = [multiple * single * granule for multiple in multiples]
    chosen = options_for_sizes(schedule, LoweringOptions("oneccl-xml", instances=asked, chunks=chunks), sizes, granule)

    def divide(instances: int, parts: int) -> bool:
        return all(size % (single * instances * parts * granule) == 0 for size in sizes)

    assert chosen.instances == max(n for n in range(1, asked + 1) if divide(n, 1))
    assert chosen.chunks == max(n for n in range(1, (chunks or 4) + 1) if divide(chosen.instances, n))
    assert (chosen.min_bytes, chosen.max_bytes) == (min(sizes), max(sizes))
    program = lower(verify(schedule), chosen)
    assert all(size % (program.chunks * granule) == 0 for size in sizes)


def test_chunks_are_joined_where_sizes_need_it():
    """Of 16 chunks of a tree, a vector of three granules can have three."""
    schedule = rechunked(RING, 16)
    assert options_for_sizes(schedule, LoweringOptions("oneccl-xml"), [5 * 3 * 4], 4).chunks == 3
    assert options_for_sizes(schedule, LoweringOptions("oneccl-xml"), [5 * 32 * 4], 4).chunks == 16
    assert options_for_sizes(schedule, LoweringOptions("oneccl-xml", chunks=64), [5 * 32 * 4], 4).chunks == 32


def test_the_nearest_sizes_are_named():
    with pytest.raises(InvalidInput, match=r"multiples of 20 bytes.*got 1024; use 1020 or 1040 bytes"):
        options_for_sizes(RING, LoweringOptions("msccl-xml", instances=2), [40, 1024], 4)
    with pytest.raises(InvalidInput, match=r"got 3; use 20 bytes"):
        options_for_sizes(RING, LoweringOptions("msccl-xml"), [3], 4)
