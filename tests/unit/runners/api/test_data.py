import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.runners.api.elements import EXACT_LIMIT, MAX_RANKS, UNTOUCHED, DataPattern, expected_output, input_data
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
