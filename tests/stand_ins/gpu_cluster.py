"""Puts stand-ins for a launcher and for nccl-tests into a folder, as commands."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from chorale.runners.api.base import Runner
from chorale.runners.workers.campaign_worker import RunnerFactory

ROOT = Path(__file__).parents[2]
LAUNCHERS = ("mpirun", "mpiexec", "srun")
TEST_PROGRAMS = ("all_reduce_perf", "all_gather_perf", "reduce_scatter_perf", "broadcast_perf", "reduce_perf")

_LAUNCHER = """\
#!/bin/sh
# Stand-in for a launcher: starts one process, which plays all ranks.
echo "$0 $*" >> "{folder}/launches.txt"
while [ "${{1##*/}}" != rank.sh ]; do
  [ $# -gt 0 ] || exit 0
  case $1 in
    -np | -n) STAND_IN_RANKS=$2 ;;
    --ntasks=*) STAND_IN_RANKS=${{1#--ntasks=}} ;;
  esac
  shift
done
export STAND_IN_RANKS
exec "$@"
"""
_TEST_PROGRAM = """\
#!/bin/sh
# Where there is a process for each rank, the first plays all; the others need no Python for that.
[ "${{PMI_RANK:-${{SLURM_PROCID:-0}}}}" = 0 ] || exit 0
exec {python} -m tests.stand_ins.nccl_tests "$0" "$@"
"""


def put_stand_ins(folder: Path) -> None:
    """Write all commands into `folder`; each launch adds its command line to `launches.txt` there."""
    folder.mkdir(exist_ok=True)
    for names, text in ((LAUNCHERS, _LAUNCHER), (TEST_PROGRAMS, _TEST_PROGRAM)):
        for name in names:
            path = folder / name
            path.write_text(text.format(folder=folder, python=sys.executable))
            path.chmod(0o755)


def stand_in_environment(
    folder: Path, memory: Path, runtime: str, fault: str = "", table: str = "old"
) -> dict[str, str]:
    """Return the variables with which the stand-ins in `folder` are found and play what is asked for."""
    return {
        "PATH": f"{folder}:/usr/bin:/bin",
        "PYTHONPATH": str(ROOT),
        "STAND_IN_MEMORY": str(memory),
        "STAND_IN_RUNTIME": runtime,
        "STAND_IN_FAULT": fault,
        "STAND_IN_TABLE": table,
    }


def on_stand_ins(environment: Mapping[str, str], make: RunnerFactory) -> Runner:
    """Return the runner of the recipe `make`, in a worker that from now on has `environment`."""
    os.environ.update(environment)
    return make()
