"""`chorale record`: run a job and write down which collectives it calls."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Annotated, Any

import typer

from chorale.job.record import VARIABLE, CallCount, CallKey, Record, read_record, record_bytes
from chorale.runners.api.units import format_size
from chorale.synth.errors import CheckFailed
from chorale.tuner.cli.choices import file_to_write
from chorale.tuner.cli.options import AsJson
from chorale.tuner.cli.output import people, results
from chorale.tuner.config.recorded_job import RecordedJob
from chorale.tuner.reports.lazy_rich import Table


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("record", context_settings={"ignore_unknown_options": True})(record_command)


def record_command(
    command: Annotated[list[str], typer.Argument(metavar="COMMAND…", help="What starts the job.")],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", callback=file_to_write, metavar="FILE", help="Where to write the record (.json)."
        ),
    ] = Path("job-record.json"),
    as_json: AsJson = False,
) -> None:
    """Run a job and write down which collectives it calls, at which sizes, how often and how long they take.

    The job must use the backend `chorale` of torch.distributed; CHORALE_RECORD names the file to its rank 0, which must
    see it. Ends with the job's exit code if that is not 0.

    Example: chorale record -o job.json -- torchrun --nproc-per-node 4 train.py
    """
    file = output.resolve()
    file.unlink(missing_ok=True)
    done = subprocess.run(command, env={**os.environ, VARIABLE: str(file)}, check=False)  # noqa: S603 - the user's own
    if done.returncode:
        raise typer.Exit(done.returncode)
    if not file.exists():
        way_out = 'have it call init_process_group("chorale") and end by itself'
        raise CheckFailed("a recorded job must use the backend chorale", f"no record in {output}", way_out)
    record = read_record(file)
    if as_json:
        typer.echo(record_bytes(record).decode(), nl=False)
        return
    results.print(_table(record))
    people.print(f"{RecordedJob.of(record).covered:.0%} of the time is in collectives that `chorale tune` can make")
    people.print(f"next: chorale tune --from-record {output} --topology SPEC", soft_wrap=True, highlight=False)


def _table(record: Record) -> Table:
    table = Table("collective", "type", "group", "size", "calls", "ms", "of the time", title=f"{record.ranks} ranks")
    order = sorted(record.calls.items(), key=lambda item: -item[1].seconds)
    for key, count in order:
        table.add_row(*_row(key, count, record.seconds))
    return table


def _row(key: CallKey, count: CallCount, total_s: float) -> list[Any]:
    group = "all" if key.group is None else ",".join(map(str, key.group))
    share = count.seconds / total_s if total_s else 0.0
    size = format_size(key.size_bytes)
    return [key.collective, key.dtype, group, size, str(count.calls), f"{count.seconds * 1e3:.4g}", f"{share:.0%}"]
