"""Ranks of a group as threads of this process, with processors that stand in for GPUs."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from chorale.runners.device.memory import Exchange, ProcessorDevice
from chorale.runners.device.plans import DeviceOptions, GroupPlans, RequestedPlan
from chorale.synth.programs.plans.plan import ExecutionPlan

LARGEST = 1 << 16


class Meeting:
    """Exchanges texts among threads, one of each rank."""

    def __init__(self, ranks: int) -> None:
        self._barrier, self._texts = threading.Barrier(ranks, timeout=60), [[""]] * ranks

    def exchange_of(self, rank: int) -> Exchange:
        def exchange(texts: list[str]) -> list[list[str]]:
            self._texts[rank] = texts
            self._barrier.wait()
            everyone = list(self._texts)
            self._barrier.wait()
            return everyone

        return exchange


def on_all_ranks(
    plans: dict[str, ExecutionPlan],
    work: Callable[[GroupPlans, int], Any],
    options: DeviceOptions | None = None,
    who: Sequence[int] | None = None,
) -> list[Any]:
    """Return what `work` gives on each rank of a group that has loaded `plans`; only `who` does it."""
    ranks = len(next(iter(plans.values())).ranks)
    meeting = Meeting(ranks)

    def be(rank: int) -> Any:
        device = ProcessorDevice(rank, meeting.exchange_of(rank))
        requests = {name: RequestedPlan(plan, LARGEST) for name, plan in plans.items()}
        group = GroupPlans(device, rank, ranks, requests, options)
        return work(group, rank) if who is None or rank in who else None

    with ThreadPoolExecutor(ranks) as threads:
        return list(threads.map(be, range(ranks)))
