"""Creates executors, which run the synthesis tasks of commands and experiments serially, in processes or on Ray."""

from collections.abc import Iterator
from contextlib import contextmanager

from chorale.synth.errors import InvalidInput, name_among
from chorale.synth.executor.base import Executor, SerialExecutor
from chorale.synth.processors import core_count

SERIAL = "serial"
EXECUTORS = (SERIAL, "processes", "ray")


@contextmanager
def open_executor(name: str, workers: int | None) -> Iterator[Executor]:
    """Yield the executor `name` with `workers` workers (default: one per core); close it when the block ends."""
    name = name_among("executor", name, EXECUTORS)
    if workers is not None and workers < 1:
        raise InvalidInput("an executor needs at least one worker", workers, "choose --workers 1 or more")
    workers = workers or core_count()
    executor: Executor = SerialExecutor()
    if name == "processes":
        from chorale.synth.executor.processes import ProcessExecutor  # noqa: PLC0415 (sockets, processes)

        executor = ProcessExecutor(workers)
    elif name == "ray":
        from chorale.runners.ray.executor import RayExecutor  # noqa: PLC0415 (half a second to import)

        executor = RayExecutor(workers)
    try:
        yield executor
    finally:
        executor.close()
