"""Puts stand-ins for a launcher and for nccl-tests into a folder, as commands."""

from __future__ import annotations

import sys
from pathlib import Path

LAUNCHERS = ("mpirun", "mpiexec", "srun")
TEST_PROGRAMS = ("all_reduce_perf", "all_gather_perf", "reduce_scatter_perf", "broadcast_perf", "reduce_perf")

_LAUNCHER = """\
#!/bin/sh
# Stand-in for a launcher: starts one process, which plays all ranks.
echo "$0 $*" >> "{folder}/launches.txt"
while [ "${{1##*/}}" != rank.sh ]; do
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
