"""`chorale find`: the best topologies of a number of nodes and a degree."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.progress import Progress as ProgressBar

from chorale.runners.api.units import parse_size
from chorale.synth.errors import InvalidInput
from chorale.synth.executor.base import Progress
from chorale.synth.finder.base_candidates import BASE_SETS, BaseSet
from chorale.synth.finder.bfb_score import MAX_NODES_WITHOUT_SYMMETRIES
from chorale.synth.finder.candidate import Workload
from chorale.synth.finder.find import Stage
from chorale.synth.finder.find import find as find_topologies
from chorale.synth.finder.find_all import find_all
from chorale.synth.finder.query import FinderQuery
from chorale.synth.identity import parse_rational
from chorale.synth.names import name_among
from chorale.tuner.cli.choices import file_to_write
from chorale.tuner.cli.options import AsJson, ExecutorName, Workers
from chorale.tuner.cli.output import emit_json, people, results
from chorale.tuner.config.executors import open_executor
from chorale.tuner.costs.pricing import load_calibration
from chorale.tuner.files.read_write import require_plot_format
from chorale.tuner.reports.finder import find_document, find_table, search_bases, sizes_document, sizes_table
from chorale.tuner.reports.quantities import seconds_text
from chorale.tuner.reports.stopwatch import Stopwatch, peak_memory_bytes

Seeds = Annotated[
    int, typer.Option("--search", min=0, max=10**6, help="Seeds of the search for Cayley digraphs; 0: no search.")
]
SearchRecord = Annotated[
    Path | None,
    typer.Option(
        "--search-record",
        metavar="FILE",
        callback=file_to_write,
        help="JSON file that keeps the search, to go on later.",
    ),
]
CalibrationFile = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Workload: JSON of `run --calibrate --json`, instead of the other two."),
]


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("find")(find)


def find(
    nodes: Annotated[str, typer.Option("--nodes", "-n", help="Number of nodes, or FIRST:LAST for all of these.")],
    degree: Annotated[int, typer.Option("--degree", "-d", help="Links out of and into every node.")],
    bidirectional: Annotated[bool, typer.Option("--bidirectional", help="Every link must have its reverse.")] = False,
    bases: Annotated[str, typer.Option(help=f"Bases to expand: {' or '.join(BASE_SETS)}.")] = "all",
    seeds: Seeds = 16,
    record: SearchRecord = None,
    alpha_us: Annotated[str | None, typer.Option(help="Workload: microseconds for a step.")] = None,
    size: Annotated[str | None, typer.Option(help="Workload: bytes of the allreduce, such as 1M.")] = None,
    bandwidth_gbps: Annotated[str | None, typer.Option(help="Workload: Gbit/s of a whole node.")] = None,
    calibration: CalibrationFile = None,
    executor: ExecutorName = "serial",
    workers: Workers = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", callback=file_to_write, help="Draw the frontier as .png, .svg or .pdf."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Find all topologies that are Pareto-efficient in steps and bandwidth time, and the best for a workload.

    `chorale synth METHOD SPEC` reproduces every row. A range of nodes takes costs that are known by theorems as they
    are, makes no schedules and searches for no bases.

    Example: chorale find --nodes 64 --degree 4 --alpha-us 10 --size 1M --bandwidth-gbps 100
    """
    base_set = _base_set(bases)
    queries = [
        FinderQuery(count, degree, bidirectional, base_set) for count in _node_counts(nodes, degree, bidirectional)
    ]
    workload = _workload(alpha_us, size, bandwidth_gbps, calibration, degree)
    if plot is not None:
        _require_plot(plot, queries)
    stages = Stopwatch()
    with open_executor(executor, workers) as running, _staged(stages) as stage:
        if ":" in nodes:
            document = sizes_document(find_all(queries, running, stage), workload)
            table = sizes_table
        else:
            searched = search_bases(queries[0], seeds, running, stage, record) if base_set == "all" else {}
            findings = find_topologies(queries[0], running, stage, searched)
            document = find_document(findings, workload)
            table = find_table
    if plot is not None:
        from chorale.tuner.plots.charts import plot_frontier  # noqa: PLC0415 (matplotlib is slow)

        plot_frontier(findings, plot)
    seconds = stages.report()
    document |= {"seconds": seconds.pop("total"), "stages": seconds, "peak_memory_bytes": peak_memory_bytes()}
    if as_json:
        emit_json(document)
    else:
        results.print(table(document))
        people.print(f"took {seconds_text(document['seconds'])}")


def _base_set(name: str) -> BaseSet:
    name = name_among("set of bases", name, BASE_SETS)
    return "paper" if name == "paper" else "all"


def _node_counts(text: str, degree: int, bidirectional: bool) -> list[int]:
    """Read N or FIRST:LAST; of a range, keep the sizes that exist."""
    first, colon, last = text.partition(":")
    if not (first.isdecimal() and len(first) < 10 and (not colon or (last.isdecimal() and len(last) < 10))):
        raise InvalidInput("--nodes must be a number or a range", text, "write 64 or 5:2000")
    if not colon:
        return [int(first)]
    possible = range(max(int(first), degree + 1, 2), min(int(last), MAX_NODES_WITHOUT_SYMMETRIES) + 1)
    counts = [count for count in possible if not bidirectional or (count * degree % 2 == 0 and degree > 1)]
    if not counts:
        value = f"{text} with degree {degree}"
        raise InvalidInput("a range of nodes must hold sizes that exist", value, "choose more nodes than the degree")
    return counts


def _require_plot(plot: Path, queries: list[FinderQuery]) -> None:
    require_plot_format(plot)
    if len(queries) > 1:
        raise InvalidInput("a plot must be of one number of nodes", f"{len(queries)} of them", "leave out --plot")


def _workload(
    alpha_us: str | None, size: str | None, bandwidth_gbps: str | None, calibration: str | None, degree: int
) -> Workload | None:
    if calibration is not None:
        return _calibrated_workload(calibration, alpha_us, size, bandwidth_gbps, degree)
    if alpha_us is None and size is None and bandwidth_gbps is None:
        return None
    if alpha_us is None or size is None or bandwidth_gbps is None:
        given = {"--alpha-us": alpha_us, "--size": size, "--bandwidth-gbps": bandwidth_gbps}
        missing = ", ".join(name for name, value in given.items() if value is None)
        rule = "a workload must have --alpha-us, --size and --bandwidth-gbps"
        raise InvalidInput(rule, f"no {missing}", "give all three or none")
    alpha, bandwidth = parse_rational(alpha_us, "--alpha-us"), parse_rational(bandwidth_gbps, "--bandwidth-gbps")
    return Workload(alpha, parse_size(size), bandwidth)


def _calibrated_workload(
    path: str, alpha_us: str | None, size: str | None, bandwidth_gbps: str | None, degree: int
) -> Workload:
    """Return the workload with fitted alpha and bandwidth; a node has `degree` links of what a link carries."""
    if alpha_us is not None or bandwidth_gbps is not None or size is None:
        rule = "a workload with --calibration has --size and neither --alpha-us nor --bandwidth-gbps"
        given = {"--alpha-us": alpha_us, "--size": size, "--bandwidth-gbps": bandwidth_gbps}
        named = ", ".join(name for name, value in given.items() if value is not None)
        raise InvalidInput(rule, named or "none of them", "give --calibration and --size")
    fitted = load_calibration(path)
    if fitted.bandwidth_unit != "link":
        rule = "a calibration for topologies to be found must come from a network of equal links"
        raise InvalidInput(rule, f"one in {fitted.bandwidth_unit}", "calibrate on a topology such as torus:4x4")
    alpha = parse_rational(fitted.alpha_s, "the fitted alpha") * 10**6
    link_gbps = parse_rational(fitted.unit_bytes_per_s, "the fitted rate") * 8 / 10**9
    return Workload(alpha, parse_size(size), degree * link_gbps)


@contextmanager
def _staged(stages: Stopwatch) -> Iterator[Stage]:
    """Yield a function that begins the next timed stage of a search and draws a bar on a terminal."""
    watched = people.is_terminal and not people.quiet
    with ExitStack() as outer:
        bar = outer.enter_context(_bars()) if watched else None
        current = outer.enter_context(ExitStack())

        def enter(name: str) -> Progress | None:
            current.close()
            current.enter_context(stages.stage(name))
            if bar is None:
                return None
            row = bar.add_task(name, total=None)
            return lambda done, total: bar.update(row, completed=done, total=total)

        yield enter


def _bars() -> ProgressBar:
    from rich.progress import Progress as Bars  # noqa: PLC0415 (slow)

    return Bars(console=people.console, transient=True)
