"""A job: everything that a GPU cluster needs to run a program, as files of one folder."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

from chorale.runners.msccl.command import PROOF_ITERATIONS, gpus_per_node, launch_command, perf_command
from chorale.runners.msccl.environment import (
    LIBRARY_PATH_SUFFIX,
    MODES,
    PINNED_ALGORITHMS,
    Mode,
    mode_environment,
    unwanted_variables,
)
from chorale.runners.msccl.guide import readme_text
from chorale.runners.msccl.options import JobOptions
from chorale.runners.msccl.runtimes import ALGORITHMS, JOB, PART, Runtime, runtime_for
from chorale.runners.msccl.sizes import size_mismatch, size_progressions
from chorale.synth.errors import InvalidInput
from chorale.synth.programs.program import Program
from chorale.synth.targets.registry import target_named

_REFERENCES = re.compile("(" + "|".join(map(re.escape, (JOB, PART, LIBRARY_PATH_SUFFIX))) + ")")
EXECUTABLE = (".sh", ".sbatch")
"""Files whose names end so are to be executed."""

_RANK_SCRIPT = """\
#!/bin/sh
# One rank: ./rank.sh MODE PART COMMAND... sets the environment of the mode and becomes the command.
set -eu
CHORALE_JOB=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
mode=$1
CHORALE_PART=$2
export CHORALE_JOB CHORALE_PART
shift 2
. "$CHORALE_JOB/environment/$mode.sh"
exec "$@"
"""


def job_files(program: Program, options: JobOptions) -> Mapping[str, bytes]:
    """Return the files of a job, by path within its folder; the folder must be seen by all nodes under one path.

    algorithms/program.xml: the program, alone in its folder
    environment/MODE.sh:    the variables of each mode, see `chorale.runners.msccl.environment`
    rank.sh, run.sh:        what one rank does, and the launch of all
    job.sbatch:             the same for Slurm's queue, with the launcher srun
    README.md:              the commands, and how to see that the program ran

    Raises InvalidInput where the runtime is not one for the program, would not use it for one of the sizes, or where
    hosts and GPUs do not make its ranks. Same arguments, same bytes.
    """
    runtime = runtime_for(options.runtime, program)
    for size_bytes in options.sizes_bytes:
        if (reason := size_mismatch(program, size_bytes, options.element_bytes)) is not None:
            rule = f"{runtime.title} must not fall back to its own algorithm: {reason}"
            raise InvalidInput(rule, f"{size_bytes} bytes", "choose other sizes")
    files = {
        f"{ALGORITHMS}/program.xml": target_named(program.target).emit(program),
        **{f"environment/{mode}.sh": _environment_script(program, runtime, options, mode) for mode in _modes(options)},
        "rank.sh": _RANK_SCRIPT,
        "run.sh": _launch_script(program, options),
        "README.md": readme_text(program, runtime, options),
    }
    if options.launcher == "srun":
        files["job.sbatch"] = _batch_script(program, options)
    return {name: text.encode() for name, text in files.items()}


def _modes(options: JobOptions) -> list[Mode]:
    return [*MODES, *(mode for mode in PINNED_ALGORITHMS if mode.removeprefix("library-") in options.pinned)]


def _environment_script(program: Program, runtime: Runtime, options: JobOptions, mode: Mode) -> str:
    lines = [f"# Variables of the mode {mode}; {JOB} is the folder of the job."]
    if unwanted := unwanted_variables(runtime, mode):
        lines.append(f"unset {' '.join(unwanted)}")
    for name, value in mode_environment(program, runtime, options, mode).items():
        lines.append(f"export {name}={_quoted(value)}")
    return "\n".join(lines) + "\n"


def _quoted(value: str) -> str:
    """Quote `value` for a shell, which must put in what it refers to."""
    parts = _REFERENCES.split(value)
    return "".join(f'"{part}"' if _REFERENCES.fullmatch(part) else shlex.quote(part) for part in parts if part)


def _launch_script(program: Program, options: JobOptions) -> str:
    ranks = len(program.ranks)
    launch = shlex.join(launch_command(ranks, options))
    lines = [
        "#!/bin/sh",
        "# ./run.sh MODE: one launch over all sizes. Modes: program (timed), proof (with a log that shows whether the",
        "# program ran), library (the library's own algorithm).",
        "set -eu",
        'CHORALE_JOB=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)',
        f"mode=${{1:-program}} iterations={options.iterations} warmup={options.warmup}",
        "case $mode in",
        f"  {' | '.join(mode for mode in _modes(options) if mode != 'proof')}) ;;",
        f"  proof) iterations={PROOF_ITERATIONS} warmup=1 ;;",
        '  *) echo "usage: ./run.sh program | proof | library" >&2; exit 2 ;;',
        "esac",
        'mkdir -p "$CHORALE_JOB/logs"',
        'rm -f "$CHORALE_JOB/logs/$mode".*',
    ]
    for part, sizes in enumerate(size_progressions(options.sizes_bytes)):
        command = shlex.join(perf_command(program, options, sizes))
        lines.append(f'{launch} "$CHORALE_JOB/rank.sh" "$mode" {part} \\\n  {command} -n "$iterations" -w "$warmup"')
    return "\n".join(lines) + "\n"


def _batch_script(program: Program, options: JobOptions) -> str:
    ranks = len(program.ranks)
    per_node = gpus_per_node(ranks, options)
    return f"""\
#!/bin/sh
#SBATCH --job-name=chorale
#SBATCH --nodes={ranks // per_node}
#SBATCH --ntasks-per-node={per_node}
#SBATCH --gpus-per-node={per_node}
#SBATCH --exclusive
# sbatch job.sbatch, from this folder: proof first, then program and library in turns.
set -eu
cd "$SLURM_SUBMIT_DIR"
./run.sh proof > proof.txt
for turn in 1 2 3 4 5; do
  ./run.sh library > "library-$turn.txt"
  ./run.sh program > "program-$turn.txt"
done
"""
