"""A DistributedDataParallel hook that averages gradients with programs, for jobs that keep their backend:

hook = ProgramHook()
model.register_comm_hook(hook, average_gradients)
"""

import itertools
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store

from chorale.job import current_report
from chorale.job.settings import JobSettings
from chorale.job.torch.creation import group_programs
from chorale.job.torch.programs import in_place
from chorale.job.torch.recording import report_at_end
from chorale.runners.engine.library import ReduceOp

_numbers = itertools.count()


class ProgramHook:
    """Runs a table's programs for a process group of any backend, with a separate engine. Close the hook at the end.

    All ranks of the group must create the same number of hooks, together and in the same order.
    """

    def __init__(self, group: Any = None, timeout: timedelta = timedelta(minutes=30)) -> None:
        """Connect this rank to the other ranks of `group` (by default all ranks). `timeout` is the time limit for
        connecting and for each run. Raises the same errors as `group_programs`.
        """
        self._group = dist.group.WORLD if group is None else group
        members = dist.get_process_group_ranks(self._group)
        settings = JobSettings.from_environment()
        store = dist.PrefixStore(f"chorale-hook-{'-'.join(map(str, members))}-{next(_numbers)}", _get_default_store())
        self._programs = group_programs(store, members, dist.get_rank(self._group), timeout, settings)
        is_first = dist.get_rank() == 0
        self._report = report_at_end(settings.report if is_first else None)
        current_report().ranks = dist.get_world_size()

    def average(self, bucket: Any) -> Any:
        """Start averaging the bucket's gradients over the group; return the future of the result."""
        tensor = bucket.buffer().div_(dist.get_world_size(self._group))
        make = lambda: in_place("allreduce", tensor, ReduceOp.SUM)  # noqa: E731
        work = self._programs.serve("allreduce", None, tensor, None, ReduceOp.SUM, make, None)
        work = work or dist.all_reduce(tensor, group=self._group, async_op=True)
        return work.get_future().then(lambda future: future.value()[0])

    def close(self) -> None:
        """Finish all started runs, stop the threads and close the connections."""
        self._programs.end()
        self._report()


def average_gradients(hook: ProgramHook, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average the gradients of `bucket`. Pass a ProgramHook and this function to `register_comm_hook`."""
    return hook.average(bucket)
