"""One rank of a job as a process, which may end or stop itself in the middle of an execution.

It reads what to do as a line of JSON, writes its address, reads those of all ranks, and writes how each run ended.
"""

import ctypes
import json
import os
import signal
import sys
import time
from array import array
from collections.abc import Mapping
from typing import Any

from chorale.runners.engine.library import DataType, Engine, EngineError, ReduceOp, Work, engine_library, load_library

HOOK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_int)


def say(what: object) -> None:
    """Write a line of JSON."""
    sys.stdout.write(f"{json.dumps(what)}\n")
    sys.stdout.flush()


def fault_at(step: int, name: str) -> object:
    """Return a hook that sends this process a signal before the instruction of that number."""
    left = [step]

    def hook(_context: int, _block: int, _step: int) -> None:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.Signals[name])

    return HOOK(hook)


def run(engine: Engine, number: int, task: Mapping[str, Any]) -> dict[str, Any]:
    """Execute an allreduce of ones, in place, and return how it ended."""
    elements, ranks = task["elements"], task["ranks"]
    data = (ctypes.c_int32 * elements)(*([1] * elements))
    address = ctypes.addressof(data)
    work = Work(number, address, address, elements, DataType.INT32, ReduceOp.SUM, 1, task["limit_s"])
    started_s = time.monotonic()
    try:
        engine.execute(work)
    except EngineError as error:
        ended = {"status": error.status.name, "message": str(error), "blocked": error.blocked}
    else:
        ended = {"status": "OK" if set(data) == {ranks} else "WRONG"}
    return {**ended, "elapsed_s": time.monotonic() - started_s}


def main() -> None:
    """Be the rank."""
    task = json.loads(sys.stdin.readline())
    engine = Engine(task["rank"], task["ranks"])
    number = engine.load(array("q", task["words"]))
    say(engine.listen(task["address"]))
    engine.connect(json.loads(sys.stdin.readline()), bytes(16), 20.0)
    say(run(engine, number, task))
    hook = fault_at(task["fault_step"], task["fault"]) if task.get("fault") else None
    if hook is not None:
        load_library(engine_library()).chorale_on_step(engine._engine, ctypes.cast(hook, ctypes.c_void_p), None)
    say(run(engine, number, task))


if __name__ == "__main__":
    main()
