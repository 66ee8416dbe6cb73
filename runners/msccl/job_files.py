"""Writes a job's files: everything that a GPU cluster needs to run a program, with a README, in one folder."""

import re
import shlex
from collections.abc import Mapping

from chorale.runners.api.units import format_size
from chorale.runners.msccl.commands import (
    EXECUTOR,
    ITERATIONS,
    JOB,
    LIBRARY_PATH_SUFFIX,
    MODES,
    MSCCL,
    PART,
    PROOF_ITERATIONS,
    WARM_UP,
    JobOptions,
    Runtime,
    mode_environment,
    perf_command,
    runtime_for,
    size_mismatch,
    size_progressions,
)
from chorale.runners.nccl.parameters import PROGRAM, PROGRAM_FOLDER
from chorale.runners.process_launch.slurm import MPI_TYPE, OPEN_MPI_ARGUMENTS, STEP, gpus_per_node, launch_command
from chorale.synth.collective import CollectiveName
from chorale.synth.errors import InvalidInput
from chorale.synth.programs.program import Program
from chorale.synth.targets.registry import target_named

_CHOICE = """\
# srun must offer the PMI that the MPI of the test programs uses: try the likely kind first, then the other.
if [ -z "${{CHORALE_MPI:-}}" ]; then
  case $(ldd "$(command -v {test})" 2>/dev/null) in
    *libmpi.so.12* | *libmpich*) types="pmi2 pmix" ;;
    *) types="pmix pmi2" ;;
  esac
  for CHORALE_MPI in $types; do
    ! srun --overlap --mpi="$CHORALE_MPI" --nodes=1 --ntasks=1 true 2>/dev/null || break
  done
fi"""


def batch_script(ranks: int, options: JobOptions) -> str:
    """Return the script for sbatch. The script first runs the program with a log, to prove that the runtime executes
    it, and then times the library and the program alternately.
    """
    per_node = gpus_per_node(ranks, options.hosts, options.gpus_per_node)
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
# Run `sbatch job.sbatch` in this folder: it checks that the program runs, then times library and program in turn.
set -eu
cd "$SLURM_SUBMIT_DIR"
{prologue}\
./run.sh proof > proof.txt
for turn in 1 2 3 4 5; do
  ./run.sh library > "library-$turn.txt"
  ./run.sh program > "program-$turn.txt"
done
"""


def readme_text(program: Program, runtime: Runtime, options: JobOptions) -> str:
    place = "in place" if program.in_place else "out of place"
    where = options.library_folder or "a folder of LD_LIBRARY_PATH"
    before = [
        "All nodes must see this folder under the same path; `algorithms/` must contain only the program.",
        f"`{runtime.library}` of {runtime.title} must be in {where}, and the test programs, built against it with "
        f"MPI=1, {'in ' + options.tests_folder if options.tests_folder else 'on the PATH'}.",
        "One process per GPU: never `-g` above 1, no `-m`, no `-o avg`.",
    ]
    if program.collective.name is CollectiveName.ALLTOALL and runtime is not EXECUTOR:
        before.append("Only test programs that call ncclAllToAll can run it; those that send and receive cannot.")
    sizes = ", ".join(format_size(size) for size in sorted(options.sizes_bytes))
    parts = [
        f"# {program.name}",
        f"{program.collective} of {len(program.ranks)} ranks, {place}, protocol {program.protocol}, "
        f"{program.channels} channels, for {runtime.title}. Sizes: {sizes}.",
        "## Before",
        "\n".join(f"- {point}" for point in before),
        "## Run",
        _RUN,
        "## Did it run?",
        _seen(program, runtime, options),
    ]
    return "\n\n".join(parts) + "\n"


_RUN = """\
```sh
./run.sh proof > proof.txt            # once, with a log
for turn in 1 2 3 4 5; do             # then in turn, so that drift affects both
  ./run.sh library > library-$turn.txt
  ./run.sh program > program-$turn.txt
done
```

Compare the medians of the five turns at each size: the column `time` for the placement named above."""


def _seen(program: Program, runtime: Runtime, options: JobOptions) -> str:
    """Return the README's section about how to check that the program ran instead of the library's algorithm."""
    ranks, column = len(program.ranks), "in-place" if program.in_place else "out-of-place"
    other = "out-of-place" if program.in_place else "in-place"
    sign = runtime.loaded.replace("[1-9][0-9]*", "[1-9]")
    parts = size_progressions(options.sizes_bytes)
    points = [
        f"`grep -lE '{sign}' logs/proof.* | wc -l` prints {ranks * len(parts)}: every process loaded the program.",
        "`grep -h WARN logs/*` prints nothing about MSCCL.",
    ]
    if runtime.scheduled is not None:
        for part, (sizes_bytes, _) in enumerate(parts):
            calls = len(sizes_bytes) * PROOF_ITERATIONS
            points.append(
                f"`grep -cE '{runtime.scheduled}' logs/proof.{part}.*` prints at least {calls} for every rank: the "
                f"program executed the calls of {', '.join(map(format_size, sizes_bytes))}."
            )
    points += [
        f"`#wrong` is 0 in the {column} column of every row, and the tables end with `Out of bounds values : 0 OK`.",
        f"The {column} times of program and library differ; the {other} times do not: the library runs in both.",
    ]
    if runtime is MSCCL:
        points.append("This runtime does not log calls: only the different times show that it used the program.")
    return "\n".join(f"{number}. {point}" for number, point in enumerate(points, 1))


_REFERENCES = re.compile("(" + "|".join(map(re.escape, (JOB, PART, STEP, MPI_TYPE, LIBRARY_PATH_SUFFIX))) + ")")
_RANK_SCRIPT = """\
#!/bin/sh
# Run one rank: ./rank.sh MODE PART COMMAND... sets the mode's environment, then executes the command.
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
    """Return a job's files: path within the job's folder -> content. All nodes must see the folder under the same path.

        algorithms/program.xml: the program, alone in its folder
        environment/MODE.sh:    each mode's variables, see `chorale.runners.msccl.commands`
        rank.sh, run.sh:        one rank's work, and the launch of all ranks
        job.sbatch:             the script for Slurm's queue, only if the launcher is srun
        README.md:              the commands, and how to check that the program ran

    Raises InvalidInput if the runtime cannot execute the program or would not use it at one of the sizes, or if hosts
    and GPUs do not match the program's ranks. Equal arguments give identical bytes.
    """
    runtime = runtime_for(options.runtime, program)
    for size_bytes in options.sizes_bytes:
        if (reason := size_mismatch(program, size_bytes, options.element_bytes)) is not None:
            rule = f"{runtime.title} must not fall back to its own algorithm: {reason}"
            raise InvalidInput(rule, f"{size_bytes} bytes", "choose other sizes")
    files = {
        f"{PROGRAM_FOLDER}/{PROGRAM}": target_named(program.target).emit(program),
        "rank.sh": _RANK_SCRIPT,
        "run.sh": _launch_script(program, options),
        "README.md": readme_text(program, runtime, options),
    }
    for mode in MODES:
        lines = [f"# Variables of the mode {mode}; {JOB} is the folder of the job."]
        unwanted = [name for name in runtime.enabling if mode == "library" and name not in runtime.disabling]
        lines += [f"unset {' '.join(unwanted)}"] if unwanted else []  # the user may have set these variables
        variables = mode_environment(program, runtime, options, mode)
        lines += [f"export {name}={_quoted(value)}" for name, value in variables.items()]
        files[f"environment/{mode}.sh"] = "\n".join(lines) + "\n"
    if options.launcher == "srun":
        files["job.sbatch"] = batch_script(len(program.ranks), options)
    return {name: text.encode() for name, text in files.items()}


def _quoted(value: str) -> str:
    """Quote `value` for a shell that must still expand the variables in it."""
    parts = _REFERENCES.split(value)
    return "".join(f'"{part}"' if _REFERENCES.fullmatch(part) else shlex.quote(part) for part in parts if part)


def _launch_script(program: Program, options: JobOptions) -> str:
    ranks = len(program.ranks)
    words = launch_command(options.launcher, ranks, options.hosts, options.gpus_per_node)
    launch = " ".join(map(_quoted, words))
    lines = [
        "#!/bin/sh",
        "# ./run.sh MODE: one launch over all sizes. Modes: program (timed), proof (with a log that shows whether the",
        "# program ran), library (the library's own algorithm).",
        "set -eu",
        'CHORALE_JOB=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)',
        f"mode=${{1:-program}} iterations={ITERATIONS} warmup={WARM_UP}",
        "case $mode in",
        f"  {' | '.join(mode for mode in MODES if mode != 'proof')}) ;;",
        f"  proof) iterations={PROOF_ITERATIONS} warmup=1 ;;",
        '  *) echo "usage: ./run.sh program | proof | library" >&2; exit 2 ;;',
        "esac",
        'mkdir -p "$CHORALE_JOB/logs"',
        'rm -f "$CHORALE_JOB/logs/$mode".*',
    ]
    commands = [perf_command(program, options, *each) for each in size_progressions(options.sizes_bytes)]
    if options.launcher == "srun":
        # With SLURM_HOSTFILE, srun would take the hosts from that file and ignore its options.
        lines += ["CHORALE_STEP=${CHORALE_STEP:-chorale}", "unset SLURM_HOSTFILE"]
        lines.append(_CHOICE.format(test=shlex.quote(commands[0][0])))
    else:  # let mpirun start its daemons within a Slurm job
        arguments = f'"{OPEN_MPI_ARGUMENTS}${{CHORALE_STEP:-chorale}}"'
        settings = f"PRTE_MCA_plm_slurm_args={arguments} OMPI_MCA_plm_slurm_args={arguments}"
        lines += ['if [ -n "${SLURM_JOB_ID:-}" ]; then', f"  export {settings}", "fi"]
    for part, words in enumerate(commands):
        command = shlex.join(words)
        lines.append(f'{launch} "$CHORALE_JOB/rank.sh" "$mode" {part} \\\n  {command} -n "$iterations" -w "$warmup"')
    return "\n".join(lines) + "\n"
