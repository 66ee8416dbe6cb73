"""What a job has for Slurm: its batch script, and what its launches need from srun."""

from __future__ import annotations

import shlex

from chorale.runners.msccl.commands import gpus_per_node
from chorale.runners.msccl.options import JobOptions, Launcher
from chorale.runners.process_launch.slurm import OPEN_MPI_ARGUMENTS

HYDRA_FILE = "hydra-srun.sh"

_CHOICE = """\
# srun and the test programs must speak the same PMI: the first that starts a step, in the order of the MPI they link.
if [ -z "${{CHORALE_MPI:-}}" ]; then
  case $(ldd "$(command -v {test})" 2>/dev/null) in
    *libmpi.so.12* | *libmpich*) types="pmi2 pmix" ;;
    *) types="pmix pmi2" ;;
  esac
  for CHORALE_MPI in $types; do
    ! srun --overlap --mpi="$CHORALE_MPI" --nodes=1 --ntasks=1 true 2>/dev/null || break
  done
fi"""


def step_settings(test_program: str, options: JobOptions) -> list[str]:
    """Return the lines of a launch script that set what the command of srun refers to."""
    lines = ["CHORALE_STEP=${CHORALE_STEP:-chorale}", "unset SLURM_HOSTFILE"]  # srun would prefer it
    return lines if options.mpi is not None else [*lines, _CHOICE.format(test=shlex.quote(test_program))]


def mpiexec_settings(launcher: Launcher) -> list[str]:
    """Return the lines of a launch script with which an mpiexec starts its daemons within a job of Slurm."""
    arguments = f'"{OPEN_MPI_ARGUMENTS}${{CHORALE_STEP:-chorale}}"'
    settings = {
        "mpich": f'HYDRA_LAUNCHER=slurm HYDRA_LAUNCHER_EXEC="$CHORALE_JOB/{HYDRA_FILE}"',
        "openmpi": f"PRTE_MCA_plm_slurm_args={arguments} OMPI_MCA_plm_slurm_args={arguments}",
    }
    guard = 'if [ -n "${SLURM_JOB_ID:-}" ] && [ -z "${HYDRA_LAUNCHER:-}" ]; then'
    return [guard, f"  export {settings[launcher]}", "fi"]


def batch_script(ranks: int, options: JobOptions) -> str:
    """Return the script for sbatch: proof first, then library and program in turns."""
    per_node = gpus_per_node(ranks, options)
    nodes = [f"--nodelist={','.join(options.hosts)}"] if options.hosts else []
    requests = [
        "--job-name=chorale",
        f"--nodes={ranks // per_node}",
        f"--ntasks-per-node={per_node}",
        f"--gpus-per-node={per_node}",
        "--exclusive",
        *nodes,
        *options.batch_options,
    ]
    prologue = "".join(f"{line}\n" for line in options.batch_prologue)
    return f"""\
#!/bin/sh
{"".join(f"#SBATCH {shlex.quote(request)}" + chr(10) for request in requests)}\
# sbatch job.sbatch, from this folder: proof first, then program and library in turns.
set -eu
cd "$SLURM_SUBMIT_DIR"
{prologue}\
./run.sh proof > proof.txt
for turn in 1 2 3 4 5; do
  ./run.sh library > "library-$turn.txt"
  ./run.sh program > "program-$turn.txt"
done
"""
