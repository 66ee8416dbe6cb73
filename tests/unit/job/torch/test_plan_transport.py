"""Groups on which no plan can run say which and why."""

from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

from chorale.job.settings import JobSettings
from chorale.job.table.lookup import Fallback
from chorale.job.torch.creation import device_transport


@pytest.mark.parametrize(
    ("facts", "reason", "told"),
    [
        ([["a", "GPU-0", "132"], ["b", "GPU-1", "132"]], Fallback.HOSTS, "its ranks are on 2 hosts"),
        ([["a", "GPU-0", "132"], []], Fallback.PLAN, "no NVIDIA GPU that reaches the others of its host at ranks 1"),
        ([["a", "GPU-0", "132"]] * 2, Fallback.PLAN, "ranks share a GPU"),
    ],
)
def test_why_no_plan_runs(
    facts: list[list[str]], reason: Fallback, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    member = SimpleNamespace(rank=0, exchanges=lambda _: lambda _: facts)
    assert device_transport(member, "table", {}, JobSettings()) is reason  # type: ignore[arg-type]
    assert told in capsys.readouterr().err
