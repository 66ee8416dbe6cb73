"""Job folders for other machines: programs, scripts and checklists for each runtime, with a manifest."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any

from chorale.runners.api.config import CPU_TARGET
from chorale.runners.api.units import format_size
from chorale.runners.msccl.commands import RUNTIMES, JobOptions, Launcher
from chorale.runners.msccl.job_files import job_files
from chorale.synth.errors import InvalidInput
from chorale.synth.identity import rational_text
from chorale.synth.programs.program import Program
from chorale.synth.targets.registry import target_named
from chorale.synth.topology.topology import Topology
from chorale.synth.verify.verified import VerifiedSchedule
from chorale.tuner.reports.show import program_facts, topology_document

FORMAT = "chorale-job/1"
GPU_TARGETS = ("msccl-xml", "msccl-executor-xml")
JOB_TARGETS = (*GPU_TARGETS, CPU_TARGET)
LAUNCHERS: Mapping[Launcher, str] = {"openmpi": "mpirun", "srun": "srun"}
"""Each job for GPUs is written for both; value: the end of its folder's name."""


@dataclass(frozen=True, slots=True)
class Export:
    """The content of a job folder.

    programs: checked, one for each dialect, all of the same collective and ranks
    schedule: what they were lowered from, None for a program from elsewhere
    options:  where and how programs for GPUs run; the launcher is chosen per folder
    """

    topology: Topology
    programs: tuple[Program, ...]
    schedule: VerifiedSchedule | None
    options: JobOptions


def export_files(export: Export) -> dict[str, bytes]:
    """Return the files of the folder by path: a folder for each runtime and launcher, manifest.json and README.md.

    The same export gives the same bytes. InvalidInput for a dialect without jobs, and as `job_files` raises it.
    """
    files: dict[str, bytes] = {}
    jobs: list[dict[str, Any]] = []
    for program in export.programs:
        for folder, runtime, contents in _jobs(export, program):
            files |= {f"{folder}/{path}": content for path, content in contents.items()}
            jobs.append({"folder": folder, "runtime": runtime, "program": _program_document(program)})
    files["README.md"] = _readme(export, jobs).encode()
    hashes = {path: hashlib.sha256(content).hexdigest() for path, content in sorted(files.items())}
    files["manifest.json"] = (json.dumps(_manifest(export, jobs) | {"files": hashes}, indent=2) + "\n").encode()
    return files


def require_job_target(target: str) -> None:
    """Raise InvalidInput unless there are jobs for programs of this dialect."""
    if target not in JOB_TARGETS:
        rule = "a job must be for a dialect that it can be started for"
        raise InvalidInput(rule, target, f"choose from {', '.join(JOB_TARGETS)}")


def _jobs(export: Export, program: Program) -> list[tuple[str, str, Mapping[str, bytes]]]:
    """Return (folder, name of the runtime, files) of each job for `program`."""
    if program.target == CPU_TARGET:
        return [("oneccl", "chorale run", _cpu_files(export, program))]
    runtimes = [runtime for runtime in RUNTIMES.values() if runtime.target == program.target]
    choices = [(runtime, launcher, end) for runtime in runtimes for launcher, end in LAUNCHERS.items()]
    return [
        (
            f"{runtime.name}-{end}",
            runtime.name,
            job_files(program, replace(export.options, runtime=runtime.name, launcher=launcher)),
        )
        for runtime, launcher, end in choices
    ]


def _cpu_files(export: Export, program: Program) -> dict[str, bytes]:
    sizes = ",".join(format_size(size) for size in export.options.sizes_bytes)
    spec = shlex.quote(export.topology.spec)
    command = f"chorale run program.xml --spec {spec} --sizes {sizes} --dtype {export.options.dtype}"
    script = (
        "#!/bin/sh\n# ./run.sh [RUNNER [OPTIONS]]: local (default), oneccl, mpi or simulated; all data are checked\n"
        'set -eu\ncd -- "$(dirname -- "$0")"\nrunner=${1:-local}\n[ $# -eq 0 ] || shift\n'
        f'exec {command} --runner "$runner" "$@"\n'
    )
    text = target_named(program.target).emit(program)
    return {"program.xml": text.encode(), "run.sh": script.encode(), "README.md": _CPU_GUIDE.format(spec=spec).encode()}


_CPU_GUIDE = """\
# On CPUs

```sh
chorale lift program.xml --spec {spec}    # read it back, check it again
./run.sh                                  # local processes over paced links
./run.sh oneccl                           # oneCCL's point-to-point calls, on a fabric or a cluster
./run.sh mpi                              # the same over MPI
```

## Did it run?

1. The command ends with exit code 0: every element of every result was compared with the definition.
2. Nothing else can have run: these runners have no algorithm to fall back to.
3. `--json` names the runner and its environment beside the times.
"""


def _readme(export: Export, jobs: Sequence[Mapping[str, Any]]) -> str:
    program = export.programs[0]
    cost = "" if export.schedule is None else f" Time per byte {export.schedule.cost.time_per_byte}, verified."
    lines = [
        f"# {program.collective.name.value} of {len(program.ranks)} ranks on {export.topology.spec}",
        "",
        f"Every folder is a job by itself.{cost} `manifest.json` says what everything is; its ids are SHA-256.",
        "",
        "| folder | for | start with |",
        "|---|---|---|",
    ]
    for job in jobs:
        folder, name = job["folder"], job["runtime"]
        title = RUNTIMES[name].title if name in RUNTIMES else "CPUs"
        start = "`sbatch job.sbatch`" if folder.endswith("-srun") else "`./run.sh`"
        lines.append(f"| [{folder}]({folder}/README.md) | {title} | {start} |")
    return "\n".join(
        [*lines, "", _CHECKLIST if any(job["runtime"] in RUNTIMES for job in jobs) else _ALWAYS_CHECKED, ""]
    )


_CHECKLIST = """\
How to see that the program really ran, for runtimes that fall back to their own algorithms without a word:

1. `./run.sh proof > proof.txt` first. The README of the folder says which lines `logs/proof.*` must hold, and how many.
2. `#wrong` is 0 in every row.
3. `./run.sh library` and `./run.sh program` in turns: the times of the placement that the program serves differ, those
   of the other placement do not.
4. `sha256sum algorithms/program.xml` is what the manifest says, on every node."""
_ALWAYS_CHECKED = "The runners check every element and have nothing to fall back to."


def _manifest(export: Export, jobs: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "versions": {"chorale": version("chorale-collectives"), "numpy": version("numpy")},
        "topology": topology_document(export.topology),
        "collective": export.programs[0].collective.name.value,
        "root": export.programs[0].collective.root,
        "schedule": None if export.schedule is None else _schedule_document(export.schedule),
        "verification": {
            "schedule": None if export.schedule is None else "replayed chunk by chunk: right",
            "programs": "read back and executed symbolically: right",
        },
        "sizes_bytes": list(export.options.sizes_bytes),
        "jobs": jobs,
    }


def _schedule_document(verified: VerifiedSchedule) -> dict[str, Any]:
    return {
        "id": verified.schedule.id,
        "method": verified.schedule.method,
        "parameters": dict(verified.schedule.parameters),
        "time_per_byte": rational_text(verified.cost.time_per_byte),
    }


def _program_document(program: Program) -> dict[str, Any]:
    text = target_named(program.target).emit(program)
    return {**program_facts(program), "protocol": program.protocol, "id": hashlib.sha256(text.encode()).hexdigest()}
