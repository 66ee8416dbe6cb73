"""`chorale table`: tuning tables for jobs, one file each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from chorale.job.settings import load_table, read_table
from chorale.job.table.layout import parse_table, table_bytes
from chorale.job.table.merging import comparison
from chorale.job.table.model import Table
from chorale.tuner.cli.application import CommandLine
from chorale.tuner.cli.choices import campaign_name, file_to_write
from chorale.tuner.cli.options import AsJson
from chorale.tuner.cli.output import emit_json, people, results
from chorale.tuner.cli.table_export import export
from chorale.tuner.files.read_write import read_file, write_file
from chorale.tuner.reports.table_display import diff_lines, table_document, table_lines

table_app = CommandLine(
    help="Write, show, verify, merge and compare tuning tables: the file that a job takes from CHORALE_TABLE.",
    no_args_is_help=True,
)

TableFile = Annotated[Path, typer.Argument(metavar="FILE", help="Table file.")]
OutputFile = Annotated[
    Path, typer.Option("--output", "-o", callback=file_to_write, metavar="FILE", help="Table file to write.")
]


def register(app: typer.Typer) -> None:
    """Add `chorale table` to the command line."""
    table_app.command("export")(export)
    app.add_typer(table_app, name="table")


@table_app.command("write")
def write(
    output: OutputFile,
    programs: Annotated[
        list[str] | None, typer.Argument(metavar="PROGRAM", help="Program files, .xml, as `chorale lower` writes.")
    ] = None,
    campaign: Annotated[
        str | None, typer.Option(metavar="NAME", parser=campaign_name, help="Finished campaign whose answer it is.")
    ] = None,
    topology: Annotated[
        str | None,
        typer.Option(metavar="SPEC", help="Network: its champions in the registry; or what the programs run on."),
    ] = None,
    sizes: Annotated[
        str | None,
        typer.Option(metavar="RANGE", help="Of programs, such as 1KiB-64MiB or 64KiB-; buffer sizes."),
    ] = None,
    dtypes: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Element types; default: any, float32 for what was tuned."),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(metavar="RANKS", help="Ranks of the job that run it, in the programs' order, such as 0,2,4,6."),
    ] = None,
    ranks: Annotated[int | None, typer.Option(min=1, help="Ranks of the job, for a --group of a larger one.")] = None,
    beyond: Annotated[
        bool, typer.Option("--beyond", help="Of a campaign: below and above all measured sizes too.")
    ] = False,
    alias: Annotated[
        str, typer.Option(help="Which versions of the registry; `register.alias` of campaigns.")
    ] = "champion",
    as_json: AsJson = False,
) -> None:
    """Write a table: of a campaign, of all champions for a network, or of program files for one range of sizes.

    Every program is executed symbolically before it is written. Sizes that no entry covers are the library's.

    Example: chorale table write --campaign quickstart -o job.table

    Example: chorale table write allreduce.xml --sizes 64KiB- -o job.table
    """
    from chorale.tuner.cli.table_write import TableRequest, written_table  # noqa: PLC0415 - MLflow takes a second

    request = TableRequest(tuple(programs or ()), campaign, topology, sizes, dtypes, group, ranks, beyond, alias)
    _write(written_table(request), output, as_json)


@table_app.command("show")
def show(file: TableFile, as_json: AsJson = False) -> None:
    """Show what a table says: what runs for which collective, type, ranks and sizes, and how it was measured.

    Example: chorale table show job.table --json
    """
    table, digest = read_table(file)
    if as_json:
        emit_json(table_document(table, digest))
    else:
        results.print(table_lines(table, digest, str(file)))


@table_app.command("verify")
def verify(file: TableFile, as_json: AsJson = False) -> None:
    """Check checksums, and every program again: text, words for the engine, collective, links; exit 1 if one fails.

    Example: chorale table verify job.table
    """
    from chorale.tuner.cli.table_verify import verification_document  # noqa: PLC0415 - the checker is compiled code

    document = verification_document(read_file(str(file)))
    if as_json:
        emit_json(document)
    else:
        for line in (f"{item['rule']}: {item['message']}" for item in document["violations"]):
            results.print(line)
        good = sum(item["ok"] for item in document["programs"])
        verdict = "right" if document["ok"] else "NOT right"
        text = f"{file}: {verdict}; programs {good} of {len(document['programs'])}; links: {document['links']}"
        results.print(text)
    if not document["ok"]:
        raise typer.Exit(1)


@table_app.command("merge")
def merge(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Table files of one job.")],
    output: OutputFile,
    prefer: Annotated[
        str | None, typer.Option(metavar="WHICH", help="Whose entry counts where two are for the same: first or last.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Join tables of one job: of several collectives, groups of ranks, sizes. Conflicts are named and refused.

    Example: chorale table merge all.table groups.table -o job.table
    """
    from chorale.job.table.merging import merge as merged  # noqa: PLC0415

    _write(merged([load_table(file) for file in files], prefer), output, as_json)


@table_app.command("diff")
def diff(
    before: Annotated[Path, typer.Argument(metavar="BEFORE", help="Table file.")],
    after: Annotated[Path, typer.Argument(metavar="AFTER", help="Table file.")],
    as_json: AsJson = False,
) -> None:
    """Say what differs between two tables; exit 0 if nothing does, 1 if something does.

    Example: chorale table diff old.table new.table
    """
    document = comparison(load_table(before), load_table(after))
    if as_json:
        emit_json(document)
    elif not document["equal"]:
        results.print(diff_lines(document, str(before), str(after)))
    if not document["equal"]:
        raise typer.Exit(1)


def _write(table: Table, output: Path, as_json: bool) -> None:
    data = table_bytes(table)
    write_file(output, data)
    _, digest = parse_table(data)
    if as_json:
        emit_json(table_document(table, digest) | {"output": str(output)})
        return
    results.print(table_lines(table, digest, str(output)))
    people.print(f"CHORALE_TABLE={output} lets a job run it", markup=False, highlight=False, soft_wrap=True)
