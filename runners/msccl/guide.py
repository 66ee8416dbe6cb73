"""The README of a job: the commands, and how to see that the program ran."""

from __future__ import annotations

from chorale.runners.msccl.command import PROOF_ITERATIONS
from chorale.runners.msccl.options import JobOptions
from chorale.runners.msccl.runtimes import EXECUTOR, MSCCL, Runtime
from chorale.runners.msccl.sizes import size_progressions
from chorale.runners.sizes import format_size
from chorale.synth.collective import CollectiveName
from chorale.synth.programs.program import Program


def readme_text(program: Program, runtime: Runtime, options: JobOptions) -> str:
    """Return the text, in Markdown."""
    place = "in place" if program.in_place else "out of place"
    sizes = ", ".join(format_size(size) for size in sorted(options.sizes_bytes))
    parts = [
        f"# {program.name}",
        f"{program.collective} of {len(program.ranks)} ranks, {place}, protocol {program.protocol}, "
        f"{program.channels} channels, for {runtime.title}. Sizes: {sizes}.",
        "## Before",
        _before(program, runtime, options),
        "## Run",
        _RUN,
        "## Did it run?",
        _seen(program, runtime, options),
    ]
    return "\n\n".join(parts) + "\n"


_RUN = """\
```sh
./run.sh proof > proof.txt            # once: with a log
for turn in 1 2 3 4 5; do             # then in turns, so that a drift of the machine hits both
  ./run.sh library > library-$turn.txt
  ./run.sh program > program-$turn.txt
done
```

Compare medians over the turns, size by size: the column `time` of the placement named above."""


def _before(program: Program, runtime: Runtime, options: JobOptions) -> str:
    where = options.library_folder or "a folder of LD_LIBRARY_PATH"
    points = [
        "All nodes must see this folder under the same path; `algorithms/` must hold the program and nothing else.",
        f"`{runtime.library}` of {runtime.title} must be in {where}, and the test programs, built against it with "
        f"MPI=1, {'in ' + options.tests_folder if options.tests_folder else 'on the PATH'}.",
        "One process per GPU: never `-g` above 1, no `-m`, no `-o avg`.",
    ]
    if program.collective.name is CollectiveName.ALLTOALL and runtime is not EXECUTOR:
        points.append("Only test programs that call ncclAllToAll reach the runtime; those made of sends do not.")
    return "\n".join(f"- {point}" for point in points)


def _seen(program: Program, runtime: Runtime, options: JobOptions) -> str:
    """Return the checklist: a runtime that does not like a program or a call says little and uses its own algorithm."""
    ranks, column = len(program.ranks), "in-place" if program.in_place else "out-of-place"
    other = "out-of-place" if program.in_place else "in-place"
    sign = runtime.loaded.replace("[1-9][0-9]*", "[1-9]")
    parts = size_progressions(options.sizes_bytes)
    points = [
        f"`grep -lE '{sign}' logs/proof.* | wc -l` says {ranks * len(parts)}: every process took the program.",
        "`grep -h WARN logs/*` says nothing of MSCCL.",
    ]
    if runtime.scheduled is not None:
        for part, sizes in enumerate(parts):
            calls = len(sizes.sizes_bytes) * PROOF_ITERATIONS
            points.append(
                f"`grep -cE '{runtime.scheduled}' logs/proof.{part}.*` says at least {calls} for every rank: the "
                f"program executed the calls of {', '.join(map(format_size, sizes.sizes_bytes))}."
            )
    points += [
        f"`#wrong` is 0 in the {column} column of every row, and the tables end with `Out of bounds values : 0 OK`.",
        f"The {column} times of program and library differ; the {other} times, the library's in both, do not.",
    ]
    if runtime is MSCCL:
        points.append("This runtime logs nothing per call: the last point is the only sign that it used the program.")
    return "\n".join(f"{number}. {point}" for number, point in enumerate(points, 1))
