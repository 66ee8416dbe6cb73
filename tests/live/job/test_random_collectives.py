"""Random collectives in jobs of torch on eight ranks: by programs as by gloo.

Each sweep is a process of its own, which torch does not leave threads in before it forks ranks.
"""

import pytest

from tests.command import python
from tests.live.job.torch.launch import needs_torch

pytestmark = needs_torch


def _check(limit_s: float, *arguments: str) -> str:
    return python("-m", "tests.live.job.random_collectives", *arguments, timeout_s=limit_s).stdout


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("seed", "transport"), [("20", "engine"), pytest.param("21", "batched", marks=pytest.mark.slow)]
)
def test_random_collectives_give_what_gloo_gives(seed: str, transport: str) -> None:
    said = _check(190, "--count", "150", "--seed", seed)
    assert f"150 of 150 by {transport}: 0 failures" in said


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_ten_thousand_random_collectives_give_what_gloo_gives() -> None:
    assert "10000 of 10000" in _check(3500, "--count", "10000", "--seed", "23")
