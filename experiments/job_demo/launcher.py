"""A clean process that imports torch once and forks the ranks of a job, each into the network of its node.

`python -m chorale.experiments.job_demo.launcher TASK.json`: it ends with 0 when all ranks have ended well; when one
fails, or the limit is over, it kills the others and says which it was.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import runpy
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from typing import Any, NoReturn

from chorale.runners.local.rank import enter_namespaces

_IMPORTED = ("torch", "torch.distributed", "torch.nn.parallel", "torch.distributed.fsdp", "torch.optim")
_PR_SET_PDEATHSIG = 1
_POLL_S = 0.02


def main(arguments: Sequence[str]) -> int:
    """Run the task in the file that `arguments` name; return the exit code."""
    with open(arguments[0], encoding="utf-8") as file:
        task = json.load(file)
    for name in _IMPORTED:
        importlib.import_module(name)
    sys.path.insert(0, os.path.dirname(task["script"]))
    ranks = {_start(task, rank): rank for rank in range(len(task["environments"]))}
    return _outcome(ranks, time.monotonic() + task["limit_s"])


def _start(task: dict[str, Any], rank: int) -> int:
    launcher, pid = os.getpid(), os.fork()
    if pid == 0:
        _be_rank(task, rank, launcher)
    return pid


def _be_rank(task: dict[str, Any], rank: int, launcher: int) -> NoReturn:
    """Run the script as `rank`, then end this process as an interpreter would, but for freeing what it has."""
    code = 1
    try:
        enter_namespaces(tuple(task["namespaces"][rank]))
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == launcher:
            os.environ.update(task["environments"][rank])
            sys.argv = [task["script"], *task["arguments"]]
            runpy.run_path(task["script"], run_name="__main__")
            sys.stdout.flush()
            code = 0
    except BaseException:  # whatever it was: the launcher's own code must not go on here
        traceback.print_exc()
    finally:
        _end(code)


def _end(code: int) -> NoReturn:
    import atexit  # noqa: PLC0415 - only here

    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _outcome(ranks: dict[int, int], until_s: float) -> int:
    """Wait for all ranks; kill those that are left when one fails or time is over."""
    why = None
    while ranks and why is None:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid:
            rank, code = ranks.pop(pid), os.waitstatus_to_exitcode(status)
            why = f"rank {rank} ended with {code}" if code else None
        elif time.monotonic() > until_s:
            why = f"ranks {sorted(ranks.values())} did not end in time"
        else:
            time.sleep(_POLL_S)
    for pid in ranks:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    if why is not None:
        print(why, flush=True)
    return 0 if why is None else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
