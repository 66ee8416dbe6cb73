"""Bus bandwidth factors against the definitions of nccl-tests."""

import pytest

from chorale.runners.api.base import bus_factor
from chorale.synth.collective import STANDARD, CollectiveName

FACTORS = {
    CollectiveName.ALLREDUCE: 2 * 7 / 8,
    CollectiveName.REDUCE_SCATTER: 7 / 8,
    CollectiveName.ALLGATHER: 7 / 8,
    CollectiveName.ALLTOALL: 7 / 8,
    CollectiveName.BROADCAST: 1,
    CollectiveName.REDUCE: 1,
}


@pytest.mark.parametrize("collective", STANDARD, ids=str)
def test_every_collective_has_the_factor_of_nccl_tests(collective: CollectiveName) -> None:
    """doc/PERFORMANCE.md of nccl-tests; for all-to-all AlltoAllGetBw in src/alltoall.cu."""
    assert bus_factor(collective, 8) == pytest.approx(FACTORS[collective])


def test_one_link_is_used_fully_by_a_pair() -> None:
    assert bus_factor("allreduce", 2) == 1
    assert bus_factor("allgather", 2) == 0.5
