"""Runs a torch script as a job on an emulated fabric; torch is imported only once for all ranks."""

import atexit
import ctypes
import multiprocessing
import os
import runpy
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from chorale.runners.fabric.fabric import EmulatedFabric
from chorale.runners.fabric.namespaces import enter_namespaces
from chorale.runners.fabric.plan import NODE_DEVICE
from chorale.runners.local.ranks import placement_of
from chorale.runners.process_launch.processes import FABRIC
from chorale.synth.errors import CheckFailed
from chorale.synth.shadowing import outside_working_folder
from chorale.synth.topology.topology import Topology

_PORT = 29400
_GRACE_S = 90.0  # seconds that importing torch may take on a busy machine
_SHOWN_LINES = 400
_IMPORTED = ["torch", "torch.distributed", "torch.nn.parallel", "torch.distributed.fsdp", "torch.optim"]
_PR_SET_PDEATHSIG = 1


def run_ranks(
    topology: Topology,
    fabric: EmulatedFabric,
    script: Path,
    arguments: Sequence[str],
    limit_s: float,
    environment: Mapping[str, str] | None = None,
    members: Sequence[int] | None = None,
) -> float:
    """Run `script` as a job on an emulated fabric and return the seconds that it took. The first rank is the master.

    Args:
        topology: the fabric's network.
        fabric: the running fabric.
        script: a torch script.
        arguments: its arguments.
        limit_s: seconds after which the job is killed.
        environment: additional environment variables.
        members: ranks of the fabric that run the job's ranks 0, 1, and so on; None for all in order.

    Raises:
        CheckFailed: if a rank fails or exceeds `limit_s`. All ranks are killed, and the end of their output is printed.
    """
    began_s = time.monotonic()
    members = members or range(fabric.ranks)
    namespaces = placement_of(topology, FABRIC, fabric.name).namespaces
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_IMPORTED)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "output"
        ranks: list[BaseProcess] = []
        for rank, member in enumerate(members):
            variables = {
                **os.environ, "RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": str(len(members)),
                "MASTER_ADDR": fabric.address(members[0]), "MASTER_PORT": str(_PORT),
                "GLOO_SOCKET_IFNAME": NODE_DEVICE, "CHORALE_INTERFACE": NODE_DEVICE, **(environment or {}),
            }  # fmt: skip
            task = (script, arguments, namespaces[member], variables, output)
            ranks.append(context.Process(target=_be_rank, args=task, name=f"rank {rank}", daemon=True))
        try:
            with outside_working_folder():
                for process in ranks:
                    process.start()
            why = _failure(ranks, began_s + limit_s + _GRACE_S)
        finally:
            for process in ranks:
                process.kill()
                process.join()
        if why is not None:
            lines = output.read_text(errors="replace").splitlines() if output.exists() else []
            sys.stderr.write("\n".join(lines[-_SHOWN_LINES:]) + "\n")
            way_out = "see the output of the ranks above"
            raise CheckFailed("every rank of the job must succeed", f"{script.name}: {why}", way_out)
    return time.monotonic() - began_s


def _be_rank(
    script: Path, arguments: Sequence[str], namespaces: tuple[str, ...], variables: Mapping[str, str], output: Path
) -> None:
    """Run the script as one rank, in this process, which is killed if its parent ends. The output goes to `output`."""
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    enter_namespaces(namespaces)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.environ.update(variables)
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.parent))
    runpy.run_path(str(script), run_name="__main__")
    atexit._run_exitfuncs()  # child processes of multiprocessing skip these functions


def _failure(ranks: Sequence[BaseProcess], until_s: float) -> str | None:
    """Wait for all ranks. As soon as a rank fails or time is up, return the reason; on success, return None."""
    running = {process.sentinel: process for process in ranks}
    while running:
        ended = wait(list(running), max(0.0, until_s - time.monotonic()))
        if not ended:
            return f"{', '.join(process.name for process in running.values())} did not end in time"
        for process in [running.pop(sentinel) for sentinel in ended if isinstance(sentinel, int)]:
            process.join()
            if process.exitcode:
                return f"{process.name} ended with {process.exitcode}"
    return None
