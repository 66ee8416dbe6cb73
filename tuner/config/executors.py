"""Choosing where synthesis tasks run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from chorale.synth.errors import InvalidInput
from chorale.synth.executor.base import Executor
from chorale.synth.executor.serial import SerialExecutor
from chorale.synth.names import name_among

SERIAL = "serial"
EXECUTORS = (SERIAL, "processes", "ray")


@contextmanager
def open_executor(name: str, workers: int | None) -> Iterator[Executor]:
    """Yield the executor called `name` with `workers` workers (default: one per core) and close it afterwards."""
    name = name_among("executor", name, EXECUTORS)
    if workers is not None and workers < 1:
        raise InvalidInput("an executor needs at least one worker", workers, "choose --workers 1 or more")
    executor = _build(name, workers or os.cpu_count() or 1)
    try:
        yield executor
    finally:
        executor.close()


def _build(name: str, workers: int) -> Executor:
    if name == SERIAL:
        return SerialExecutor()
    if name == "processes":
        from chorale.synth.executor.processes import ProcessExecutor  # noqa: PLC0415 (sockets, processes)

        return ProcessExecutor(workers)
    from chorale.runners.ray.executor import RayExecutor  # noqa: PLC0415  # half a second to import, so only on demand

    return RayExecutor(workers)
