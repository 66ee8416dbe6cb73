"""Runs a torch script as the ranks of a job on an emulated fabric; torch is imported once for all of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from chorale.runners.fabric.fabric import EmulatedFabric
from chorale.runners.fabric.plan import NODE_DEVICE
from chorale.runners.local.ranks import placement_of
from chorale.runners.process_launch.processes import FABRIC
from chorale.synth.errors import CheckFailed
from chorale.synth.topology.topology import Topology

_PORT = 29400
_GRACE_S = 90.0  # to import torch on a busy machine
_SHOWN_LINES = 400


def run_ranks(
    topology: Topology,
    fabric: EmulatedFabric,
    script: Path,
    arguments: Sequence[str],
    limit_s: float,
    environment: Mapping[str, str] | None = None,
    members: Sequence[int] | None = None,
) -> float:
    """Run `script` on every rank of `fabric`, meeting at the first one's address; return the seconds it took.

    members: ranks of the fabric that are those of the job, in this order; None for all

    CheckFailed, with the end of what ranks printed, if one fails or is not done after `limit_s`; all are killed then.
    """
    began_s = time.monotonic()
    members = members or range(fabric.ranks)
    namespaces = placement_of(topology, FABRIC, fabric.name).namespaces
    with tempfile.TemporaryDirectory() as folder:
        task = {
            "script": str(script),
            "arguments": list(arguments),
            "namespaces": [namespaces[member] for member in members],
            "environments": [
                _variables(fabric, members, rank) | dict(environment or {}) for rank in range(len(members))
            ],
            "limit_s": limit_s,
        }
        path, output = Path(folder) / "task.json", Path(folder) / "output"
        path.write_text(json.dumps(task))
        with output.open("wb") as stream:
            command = [sys.executable, "-m", f"{__package__}.launcher", str(path)]
            done = subprocess.run(  # noqa: S603 - our own module
                command, stdout=stream, stderr=stream, check=False, timeout=limit_s + _GRACE_S, env=_environment()
            )
        if done.returncode:
            lines = output.read_text(errors="replace").splitlines()
            sys.stderr.write("\n".join(lines[-_SHOWN_LINES:]) + "\n")
            way_out = "what ranks printed is above"
            raise CheckFailed("every rank of the job must end well", f"{script.name}: {lines[-1:]}", way_out)
    return time.monotonic() - began_s


def _environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def _variables(fabric: EmulatedFabric, members: Sequence[int], rank: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "LOCAL_RANK": "0",
        "WORLD_SIZE": str(len(members)),
        "MASTER_ADDR": fabric.address(members[0]),
        "MASTER_PORT": str(_PORT),
        "GLOO_SOCKET_IFNAME": NODE_DEVICE,
        "CHORALE_INTERFACE": NODE_DEVICE,
    }
