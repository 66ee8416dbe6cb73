"""Programs by batched messages: how they are waited for, on which device."""

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="BATCHED MESSAGES OF TORCH ARE NOT TESTED: torch is not installed")

from chorale.job.table.model import ANY_DTYPE, JobEntry  # noqa: E402
from chorale.job.torch.transport import BatchedTransport  # noqa: E402
from chorale.runners.engine.library import ReduceOp  # noqa: E402
from tests.live.job.torch.tables import program_for  # noqa: E402


class Group:
    """A process group whose messages are there at once; `waits` has what each was waited for with."""

    def __init__(self) -> None:
        self.waits: list[tuple[Any, ...]] = []

    def _get_backend(self, device: Any) -> Any:
        return SimpleNamespace(supports_coalescing=False)

    def send(self, *message: Any) -> Any:
        return SimpleNamespace(wait=lambda *limit: self.waits.append(limit))

    recv = send


@pytest.mark.parametrize(("device", "limits"), [("cpu", {1}), ("meta", {0})])
def test_only_messages_of_the_processor_are_waited_for_with_a_limit(device: str, limits: set[int]):
    program = program_for("allreduce")
    entry = JobEntry("allreduce", ANY_DTYPE, None, None, 0, None, program.digest)
    group = Group()
    transport = BatchedTransport(group, 0, {program.digest: program})
    assert not transport.is_connected
    tensor = torch.zeros(16, device=device)
    transport.run(entry, "allreduce", tensor, tensor, ReduceOp.SUM, 60.0)
    assert group.waits
    assert {len(limit) for limit in group.waits} == limits
    assert transport.is_connected
