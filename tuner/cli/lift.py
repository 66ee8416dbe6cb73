"""`chorale lift`: programs of any dialect, read back and judged."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from chorale.runners.api.units import parse_size
from chorale.synth.errors import InvalidInput
from chorale.synth.programs.additions import additions_document
from chorale.synth.programs.explanation import Explanation
from chorale.synth.targets.lift import LiftResult, read_program
from chorale.synth.targets.xml_reading import MAX_TEXT_BYTES
from chorale.tuner.cli.choices import file_to_write
from chorale.tuner.cli.lower import PredictedSize, program_table
from chorale.tuner.cli.network_options import LinkGbps
from chorale.tuner.cli.options import AsJson, CollectiveFile, PlotFile, SpecOfProgram
from chorale.tuner.cli.output import emit_json, results
from chorale.tuner.cli.verdicts import Fix, explained, sound_enough, verdict_document, write_bounded
from chorale.tuner.files.collective_files import load_collective
from chorale.tuner.files.program_files import network_of_program
from chorale.tuner.files.program_output import read_program_text
from chorale.tuner.files.read_write import require_plot_format, write_file
from chorale.tuner.files.topology_specs import load_topology
from chorale.tuner.reports.lowering import prediction
from chorale.tuner.reports.show import program_facts


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("lift")(lift)


def lift(
    file: Annotated[str, typer.Argument(help="Program file of any known dialect.")],
    spec: SpecOfProgram = None,
    collective_file: CollectiveFile = None,
    output: Annotated[
        str | None, typer.Option("--output", "-o", callback=file_to_write, help="Write the program again, normalised.")
    ] = None,
    fix: Fix = False,
    plot: PlotFile = None,
    size: PredictedSize = None,
    link_gbps: LinkGbps = None,
    as_json: AsJson = False,
) -> None:
    """Read a program back and check it against its collective; exit 0 if it is right, 1 if not.

    A program that hangs above some size is judged up to it: `max_bytes` says which. With --fix the file of -o is the
    program as it is, with that bound; otherwise it is written again in the form that `chorale lower` writes. --plot
    draws the instructions in their order and marks those that are wrong, or behind what is wrong.

    A program for a collective that has no name, or another than the file says, is checked against --collective-file.

    Example: chorale lift torus.xml --spec torus:4x4 --json
    """
    require_plot_format(plot)
    size_bytes, collective = None if size is None else parse_size(size), load_collective(collective_file)
    topology = network_of_program(file, collective) if spec is None else load_topology(spec)
    reading = read_program(read_program_text(file, MAX_TEXT_BYTES), topology, collective)
    violations = reading.verdict.violations
    if fix:
        write_bounded(file, reading.verdict, output)
    elif output is not None and not violations:
        write_file(output, reading.text.encode())
    behind = explained(reading.program, reading.verdict)
    document = {**verdict_document(reading.verdict, behind), **program_facts(reading.program)}
    document |= {"dialects": list(reading.fitting_targets)}
    document["order_of_additions"] = None if violations else additions_document(reading.program)
    right = prediction(reading.program, topology, size_bytes, link_gbps) if not violations else None
    document["predicted"] = right
    title = f"{file} on {topology.spec}: {'right' if not violations else 'NOT right'}"
    if plot is not None:
        _plot(reading, behind, title, plot)
    if as_json:
        emit_json(document | {"plot": None if plot is None else str(plot)})
    else:
        results.print(program_table(title, document, topology.bandwidth_unit))
    if violations:
        raise typer.Exit(1)


def _plot(reading: LiftResult, behind: Sequence[Explanation | None], title: str, path: Path) -> None:
    if not sound_enough(reading.verdict):
        found = reading.verdict.violations[0].message
        raise InvalidInput("--plot draws programs whose instructions can be executed", found, "leave it out")
    from chorale.tuner.plots.judged_plot import plot_judged  # noqa: PLC0415 (matplotlib is slow)

    plot_judged(reading.program, reading.verdict.violations, behind, title, path)
