"""Ranks that share a device: on the processor everywhere, on a GPU where there is one."""

import pytest
import torch

from tests.live.job.one_gpu import SIZES_BYTES, run
from tests.live.job.shared_gpu import LIBRARIES, RANKS

pytestmark = pytest.mark.slow  # eight processes that import torch; what they do is tested in parts elsewhere

NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="NOT TESTED ON THIS MACHINE: no GPU of CUDA")


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=NEEDS_GPU)])
def test_programs_give_what_the_library_gives(device: str) -> None:
    by_programs, by_library = run(device, "chorale"), run(device, LIBRARIES[device])
    assert (by_programs["wrong"], by_library["wrong"]) == ([], [])
    assert by_programs["right"] == by_library["right"] == RANKS * 6 * 4 * 8
    assert by_programs["losses"] == pytest.approx(by_library["losses"], rel=1e-5)  # added in another order
    assert {entry["collective"] for entry in by_programs["programs"]} == {
        *("allreduce", "allgather", "reduce_scatter", "alltoall", "broadcast", "reduce")
    }
    assert {entry["reason"] for entry in by_programs["fallbacks"]} == {"size not in the table"}
    assert set(by_programs["times_us"]) == {str(size_bytes) for size_bytes in SIZES_BYTES}
