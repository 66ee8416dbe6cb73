"""Defines the commands `chorale record` (record a job's collectives) and `replay` (simulate tuning on records)."""

import json
import os
import shutil
import subprocess
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from chorale.job.mpi.preload import stable_library
from chorale.job.record import VARIABLE, Record, read_record, record_bytes
from chorale.runners.api.units import format_size
from chorale.runners.mpi.launch import find_mpiexec
from chorale.synth.errors import CheckFailed, InvalidInput
from chorale.tuner.cli.application import CommandLine
from chorale.tuner.cli.options import FileOutput, notice, people
from chorale.tuner.config.campaign_file import RecordedJob
from chorale.tuner.files.home import write_file
from chorale.tuner.files.job_traces import UNKNOWN, load_record
from chorale.tuner.reports.tables import Columns, Result, rows_table

job_app = CommandLine(help="Print or install the library that gives MPI programs a tuning table.", no_args_is_help=True)


@job_app.command("mpi-preload")
def mpi_preload_command(
    mpicc: Annotated[str | None, typer.Argument(metavar="MPICC")] = None,
    install: Annotated[Path | None, typer.Option(metavar="DIR")] = None,
) -> Result:
    """Print the path of a library for LD_PRELOAD that applies a tuning table to unmodified MPI programs.

    The first call builds the library for the MPI of mpiexec. The path stays the same.

    Args:
        mpicc: Compiler of the MPI that the programs use [that of mpiexec].
        install: Folder to which the library is copied.

    Example: LD_PRELOAD=$(chorale job mpi-preload) CHORALE_TABLE=job.table mpiexec -n 8 ./program
    """
    path = str(stable_library(mpicc, install))
    if mpicc is None and (first := shutil.which("mpiexec")) and not Path(first).samefile(used := find_mpiexec()):
        notice(f"this library is for {used}; for the MPI of {first}, name its compiler: mpi-preload /path/to/its/mpicc")
    variables = f"LD_PRELOAD={path} CHORALE_TABLE=job.table CHORALE_REPORT=-"
    return Result({"path": path}, path, next_step=f"{variables} mpiexec -n RANKS ./program")


def record(
    command: Annotated[list[str], typer.Argument(metavar="COMMAND…|TRACE")],
    output: FileOutput = Path("job-record.json"),
    ranks: Annotated[int | None, typer.Option(min=2)] = None,
) -> Result:
    """Run a job and record which collectives it calls, at which sizes, how often and how long.

    The job must use the backend `chorale` of torch.distributed, and its rank 0 must be able to write the output file,
    whose path it gets in CHORALE_RECORD. If the job fails, the command exits with the job's exit code.

    Instead of a command, you can pass a file that a job's rank 0 wrote: a PyTorch flight recorder dump or Chakra trace.

    Args:
        command: Command that starts the job, or a trace of the job.
        ranks: Number of ranks of the job, for a Chakra .et file.

    Example: chorale record -o job.json -- torchrun --nproc-per-node 4 train.py
    """
    trace = Path(command[0])
    if len(command) == 1 and trace.is_file() and not os.access(trace, os.X_OK):
        recorded = load_record(trace, ranks)
        write_file(output, record_bytes(recorded))
        return _reported(recorded, output)
    file = output.resolve()
    file.unlink(missing_ok=True)
    try:
        done = subprocess.run(command, env={**os.environ, VARIABLE: str(file)}, check=False)  # noqa: S603 - the user's own command
    except OSError as error:
        raise InvalidInput("cannot start {}", f"{command[0]}: {error.strerror}", "check the command") from error
    if done.returncode:
        raise typer.Exit(done.returncode)
    if not file.exists():
        way_out = 'let it call init_process_group("chorale") and end normally'
        raise CheckFailed(
            "the job wrote no record, because it did not use the backend chorale: {}", f"no record in {output}", way_out
        )
    return _reported(read_record(file), output)


def _reported(recorded: Record, output: Path) -> Result:
    job = RecordedJob.of(recorded)
    what = "time" if job.timed else "bytes"
    people.print(f"{job.covered:.0%} of the {what} is in collectives that `chorale tune` can tune")
    if any(key.dtype == UNKNOWN for key in recorded.calls):
        people.print("the trace names no element types for some calls: 4 bytes per element are assumed")
    notice(f"next: chorale tune --from-record {output} --topology SPEC")
    calls = sorted(recorded.calls.items(), key=lambda item: -item[1].seconds)
    columns: Columns = {
        "collective": lambda call: call[0].collective,
        "type": lambda call: call[0].dtype,
        "group": lambda call: "all" if call[0].group is None else ",".join(map(str, call[0].group)),
        "size": lambda call: format_size(call[0].size_bytes),
        "calls": lambda call: call[1].calls,
        "ms": lambda call: f"{call[1].seconds * 1e3:.4g}",
        "of the time": lambda call: f"{call[1].seconds / recorded.seconds if recorded.seconds else 0:.0%}",
    }
    return Result(json.loads(record_bytes(recorded)), rows_table(calls, columns, f"{recorded.ranks} ranks"))


def replay(
    records: Annotated[list[Path], typer.Argument(metavar="RECORDS…")],
    trials: Annotated[int, typer.Option(min=1, max=10**4)] = 30,
    seeds: Annotated[int, typer.Option(min=1, max=10**4)] = 10,
    noise: str = "none",
    sampler: str = "sizes-gp",
    prior: str = "none",
) -> Result:
    """Replay campaigns on recorded runs, to see how well `chorale tune` searches and decides.

    A task is a collective on a fabric: the recorded configurations are the search space, and the library's runs are the
    baseline. Recorded times count as the true times; random noise is added to them.

    Args:
        records: Tables of runs (.csv), logs of nccl-tests, or folders of logs.
        trials: Maximum number of trials per campaign.
        seeds: Number of campaigns per task, each with its own seed.
        noise: Noise to add: none, lognormal:0.05 (any deviation), outliers, drift, bimodal or launch.
        sampler: Sampler as in campaign files, or forest (as in SMAC) or halving.
        prior: Recorded task or fabric whose results the search starts from, or none.

    Example: chorale replay runs.csv --noise launch --seeds 20
    """
    from chorale.tuner.replay.campaign import replay_document  # noqa: PLC0415 - Optuna is optional

    prior_or_none = None if prior == "none" else prior
    begin = partial(people.print, highlight=False, markup=False)
    document = replay_document(records, trials, seeds, noise, sampler, prior_or_none, begin)
    unchecked = [
        f"{task['task']}: {task['unchecked']:.0%} of the times are from runs whose results were not checked"
        for task in document["tasks"]
        if task["unchecked"]
    ]
    title, left = f"{seeds} seeds, noise {noise}", {"title_justify": "left", "caption_justify": "left"}
    table = rows_table(document["tasks"], _COLUMNS, title, numbers=True, caption=_LEGEND, **left)
    return Result(document, table, *unchecked, f"{document['seconds']:.0f} s")


_COLUMNS: Columns = {
    "task": lambda task: f"{task['task']}, {task['candidates']} x {task['sizes']}",
    "trials": lambda task: f"{task['trials_to_5pct_mean']:.3g}",
    "all": lambda task: f"{task['trials_to_5pct_all']:.3g}",
    "seconds": lambda task: f"{task['seconds_ratio']:.3g}",
    "wrong": lambda task: f"{task['wrong_entries']:.1%}",
    "open": lambda task: f"{task['undecided']:.1%}",
    "false": lambda task: f"{task['false_wins']:.1%}",
    "cover": lambda task: "-" if task["coverage"] is None else f"{task['coverage']:.1%}",
}
_LEGEND = (
    "trials: until the mean over sizes is within 5 % of the best; all: until every size is; seconds: until the mean "
    "is, relative to measuring every trial completely; wrong: entries more than 5 % slower; open: undecided; "
    "false: programs chosen that are not faster than the library; cover: intervals that contain the true time"
)
