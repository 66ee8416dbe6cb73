"""Data of ranks: exact for every element type, apart for all ranks; and outputs by definition."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from chorale.runners.api.elements import (
    ELEMENT_TYPES,
    EXACT_LIMIT,
    MAX_RANKS,
    UNTOUCHED,
    DataPattern,
    expected_output,
    input_data,
)
from chorale.synth.collective import ALLGATHER, ALLREDUCE, REDUCE_SCATTER, Collective, CollectiveName

patterns = st.builds(DataPattern, st.integers(1, 64), st.integers(0, 10**6), st.integers(0, 2**63))


@given(patterns, st.integers(0, 2**33), st.integers(1, 300))
def test_the_total_is_the_sum_of_all_ranks_and_exact(pattern: DataPattern, start: int, length: int) -> None:
    data = np.array([pattern.contribution(rank, start, start + length) for rank in range(pattern.ranks)])
    total = pattern.total(start, start + length)
    assert np.array_equal(data.sum(axis=0), total)
    assert data.min() > UNTOUCHED
    assert total.max() < EXACT_LIMIT
    assert np.array_equal(data.astype(np.float32).sum(axis=0, dtype=np.float32), total)


def test_the_largest_number_of_ranks_stays_exact() -> None:
    pattern = DataPattern(MAX_RANKS, 1, 0)
    assert pattern.total(0, 10_000).max() < EXACT_LIMIT
    assert len({int(pattern.contribution(rank, 5, 6)[0]) for rank in range(MAX_RANKS)}) > 1


@pytest.mark.parametrize("ranks", [2, 8, 64])
def test_misplaced_data_differ_nearly_everywhere(ranks: int) -> None:
    pattern = DataPattern(ranks, 3, 7)
    here = pattern.contribution(0, 0, 4096)
    for other in (
        pattern.contribution(1, 0, 4096),
        pattern.contribution(0, 1, 4097),
        DataPattern(ranks, 4, 7).contribution(0, 0, 4096),
    ):
        assert np.mean(here == other) < 0.01
    without_one = pattern.total(0, 4096) - pattern.contribution(ranks - 1, 0, 4096)
    one_twice = without_one + pattern.contribution(0, 0, 4096)
    assert not np.any(one_twice == pattern.total(0, 4096))


def test_outputs_follow_from_the_inputs_by_definition() -> None:
    ranks, elements = 4, 24
    pattern = DataPattern(ranks, 1, 2)

    def inputs(collective: Collective) -> list[np.ndarray]:
        return [input_data(collective, pattern, rank, elements) for rank in range(ranks)]

    def outputs(collective: Collective) -> list[np.ndarray | None]:
        return [expected_output(collective, pattern, rank, elements) for rank in range(ranks)]

    def same(found: list[np.ndarray | None], expected: list[np.ndarray]) -> bool:
        return all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))  # type: ignore[arg-type]

    whole, alltoall = sum(inputs(ALLREDUCE)), Collective(CollectiveName.ALLTOALL)
    assert same(outputs(ALLREDUCE), [whole] * ranks)
    assert same(outputs(REDUCE_SCATTER), np.split(sum(inputs(REDUCE_SCATTER)), ranks))
    assert same(outputs(ALLGATHER), [np.concatenate(inputs(ALLGATHER))] * ranks)
    blocks = [np.split(data, ranks) for data in inputs(alltoall)]
    assert same(outputs(alltoall), [np.concatenate([block[rank] for block in blocks]) for rank in range(ranks)])
    broadcast, reduce = Collective(CollectiveName.BROADCAST, 2), Collective(CollectiveName.REDUCE, 1)
    assert same(outputs(broadcast), [inputs(broadcast)[2]] * ranks)
    reduced = outputs(reduce)
    assert np.array_equal(reduced[1], whole)  # type: ignore[arg-type]
    assert [reduced[rank] for rank in (0, 2, 3)] == [None] * 3


@pytest.mark.parametrize("name", ELEMENT_TYPES)
def test_integers_up_to_the_limit_are_exact_and_the_limit_is_what_it_can_be(name: str) -> None:
    element = ELEMENT_TYPES[name]
    integers = np.arange(element.exact_limit - 300, element.exact_limit + 1).clip(min=UNTOUCHED)
    assert np.array_equal(integers.astype(element.dtype).astype(np.int64), integers)
    if name in ("float32", "float16", "bfloat16"):
        assert int(np.array(element.exact_limit + 1).astype(element.dtype)) == element.exact_limit


@given(st.sampled_from(["bfloat16", "float16"]), st.data(), st.integers(0, 10**6), st.integers(0, 2**33))
def test_sums_of_short_types_are_exact_in_any_order(name: str, data: st.DataObject, run: int, start: int) -> None:
    element = ELEMENT_TYPES[name]
    ranks, seed = data.draw(st.integers(1, element.max_ranks)), data.draw(st.integers(0, 2**63))
    pattern = DataPattern(ranks, run, seed, element.exact_limit)
    total = pattern.total(start, start + 200)
    vectors = [pattern.contribution(rank, start, start + 200) for rank in range(ranks)]
    assert total.max() <= element.exact_limit
    added = np.zeros(200, element.dtype)
    for datum in vectors:
        added = added + datum.astype(element.dtype)
    assert np.array_equal(added.astype(np.int64), total)
    assert all(np.all(vectors[0] != other) for other in vectors[1:])


def test_seventeen_ranks_would_be_too_many_for_what_is_promised() -> None:
    element = ELEMENT_TYPES["bfloat16"]
    most = max(DataPattern(18, run, 0, element.exact_limit).total(0, 5000).max() for run in range(5))
    assert most > element.exact_limit
