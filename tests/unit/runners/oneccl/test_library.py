"""Which sizes oneCCL's algorithms are measured at, and how it is told which is for which."""

import re

from hypothesis import given
from hypothesis import strategies as st

from chorale.runners.oneccl.runner import ALGORITHMS, VARIABLES, library_sizes
from chorale.synth.collective import STANDARD, CollectiveName
from tests.conformance.runner_kit import RING, request_of

RANKS = 4
BYTES = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2, "int32": 4, "int64": 8}


def _sizes(  # type: ignore[no-untyped-def]
    collective: CollectiveName, sizes_bytes: tuple[int, ...], dtype: str = "float32"
):
    library = ALGORITHMS[collective]
    return library_sizes(request_of(RING, sizes_bytes=sizes_bytes, dtype=dtype, library=library), collective)


def test_the_variable_lists_a_range_for_each_algorithm() -> None:
    elements, environment = _sizes(CollectiveName.REDUCE_SCATTER, (4096,))
    assert elements == {("ring", 0): 1024, ("naive", 0): 1040}
    assert environment == {"CCL_REDUCE_SCATTER": "ring:1024-1039;naive:1040-1055"}


def test_without_algorithms_nothing_is_set() -> None:
    assert library_sizes(request_of(RING), CollectiveName.ALLREDUCE) == ({}, {})


@given(
    st.sampled_from(list(STANDARD)),
    st.lists(st.integers(1, 10_000), min_size=1, max_size=5),
    st.sampled_from(list(BYTES)),
)
def test_every_size_belongs_to_its_algorithm_alone(collective: CollectiveName, wanted: list[int], dtype: str) -> None:
    sizes, environment = _sizes(collective, tuple(wanted), dtype)
    text = environment[VARIABLES[collective]]
    ranges = [(name, int(low), int(high)) for name, low, high in re.findall(r"([^;:]+):([0-9]+)-([0-9]+)", text)]
    shards = RANKS if collective.value in ("allgather", "reduce_scatter", "alltoall") else 1
    assert len(sizes) == len(ranges) == len(wanted) * len(ALGORITHMS[collective])
    for (algorithm, position), elements in sizes.items():
        assert elements % shards == 0
        seen_bytes = elements * BYTES[dtype] // shards  # what oneCCL looks up
        assert [name for name, low, high in ranges if low <= seen_bytes <= high] == [algorithm]
        size_bytes = elements * BYTES[dtype]
        assert wanted[position] <= size_bytes
        assert size_bytes - wanted[position] <= 16 * shards * len(ranges)
