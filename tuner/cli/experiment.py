"""`chorale experiment` and `chorale bench`: questions answered by numbers, and our own benchmarks."""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from chorale.synth.errors import CheckFailed, InvalidInput
from chorale.tuner.cli.choices import file_to_write
from chorale.tuner.cli.options import AsJson, ExecutorName, Workers
from chorale.tuner.cli.output import emit_json, people, results
from chorale.tuner.config.executors import EXECUTORS, SERIAL, open_executor
from chorale.tuner.files.home import Home
from chorale.tuner.files.read_write import require_plot_format, write_file
from chorale.tuner.reports.lazy_rich import Table, ruled_table


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    app.command("experiment")(experiment)
    app.command("bench")(bench)


def experiment(
    name: Annotated[str, typer.Argument(metavar="list | NAME", help="Experiment to run, or list.")],
    quick: Annotated[bool, typer.Option("--quick", help="Leave out rows that take longer than about 10 s.")] = False,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", callback=file_to_write, help="Draw the rows as .png, .svg or .pdf.")
    ] = None,
    mlflow: Annotated[bool, typer.Option("--mlflow", help="Log the answer as a run of MLflow.")] = False,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Take what an earlier run worked out by the same code, and go on from there."),
    ] = False,
    executor: ExecutorName = "serial",
    workers: Workers = None,
    as_json: AsJson = False,
) -> None:
    """Work out the answer to a question part by part, beside what was printed where it comes from.

    Exit code 1 if a row does not hold. Every row names the spec and method that reproduce it. Each part is kept in the
    data folder as soon as it is there, and --resume takes it from there. Parts run over the executor, but for those
    whose times count: they run one at a time.

    Example: chorale experiment direct-connect-table-5
    """
    if name == "list":
        _list(as_json)
        return
    run, chosen = _experiments("run"), _experiments("catalog").load(name)
    if plot is not None:
        _require_plot(chosen, plot)
    home, start_ms = Home.from_environment(), _now_ms()
    store = run.PartStore(home.create(home.experiments))
    # A known executor is not started where all parts run here: on Ray that would be a second cluster beside theirs.
    where = SERIAL if chosen.alone and executor in EXECUTORS else executor
    with open_executor(where, workers) as opened, _report() as report:
        result = run.run_experiment(chosen, quick, opened, store=store, resume=resume, progress=report)
    if plot is not None:
        chosen.plot(result.rows, plot)
    document = result.document(chosen, quick)
    if mlflow:
        _log(document, plot, start_ms)
    if as_json:
        emit_json(document)
    else:
        _print_table(chosen, result.rows)
        people.print(f"{result.seconds:.1f} s")
    failed = [row for row in result.rows if not row["holds"]]
    if failed:
        value = "; ".join(f"{_row_name(chosen, row)}: {row['reason']}" for row in failed)
        raise CheckFailed("every row of an experiment must hold", value, f"see chorale experiment {name} --json")


def _experiments(name: str) -> Any:
    """Return a module of the layer above this one: it is imported by name, and only when it is used."""
    return importlib.import_module(f"chorale.experiments.framework.{name}")


def _log(document: Mapping[str, Any], plot: Path | None, start_ms: int) -> None:
    home = Home.from_environment()
    from chorale.tuner.tracking.mlflow_store import MlflowStore  # noqa: PLC0415 (slow)
    from chorale.tuner.tracking.run_content import log_experiment  # noqa: PLC0415 (slow)

    store = MlflowStore(home.mlflow_uri, home.artifacts)
    run_id = log_experiment(store, document, {plot.name: plot.read_bytes()} if plot else {}, start_ms, _now_ms())
    people.print(f"run {run_id} at {store.uri}")


def _now_ms() -> int:
    return time.time_ns() // 10**6


def _row_name(chosen: Any, row: Any) -> str:
    """Return which row it is: by its network if it has one, else by its first two columns."""
    if "nodes" in row:
        return f"{row['nodes']} nodes, {row['spec']}"
    return ", ".join(column.text(row) for column in chosen.columns[:2])


def _list(as_json: bool) -> None:
    """Print every experiment with the tables and figures that it answers besides the one in its name."""
    experiments = _experiments("catalog").summaries()
    if as_json:
        emit_json({"experiments": [entry._asdict() for entry in experiments]})
        return
    table = ruled_table("name", "question", "source")
    for entry in experiments:
        table.add_row("\n".join((entry.name, *entry.aliases)), entry.question, entry.source)
    results.print(table)


def _require_plot(chosen: Any, plot: Path) -> None:
    require_plot_format(plot)
    if chosen.plot is None:
        raise InvalidInput("a plot must be of an experiment that draws one", chosen.name, "leave out --plot")


def _print_table(chosen: Any, rows: Any) -> None:
    table = ruled_table(title=chosen.question, caption=chosen.source)
    for column in chosen.columns:
        table.add_column(column.heading)
    for row in rows:
        table.add_row(*(column.text(row) for column in chosen.columns), style=None if row["holds"] else "bold red")
    results.print(table)


@contextmanager
def _report() -> Iterator[Any]:
    """Yield a callback that shows which part is being computed, on a terminal only."""
    if people.quiet or not people.is_terminal:
        yield lambda _what, _done, _total: None
        return
    with people.status("…") as status:
        yield lambda what, done, total: status.update(f"part {done + 1} of {total}: {what}")


HISTORY = "bench.jsonl"


def bench(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Benchmarks; default: all.")] = None,
    table: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            callback=file_to_write,
            help="Also write a Markdown table: before, now, limit and ratio of each case.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run benchmarks, compare counts and certificates with those expected, and keep the history in the data folder.

    Exit code 1 if a fact differs. Goals are ratios to the reference; one of times that is missed is only told.

    Example: chorale bench rings

    Example: chorale bench start commands --table table.md
    """
    # The layer above this one: it is imported by name, and only when it is used.
    suite = importlib.import_module("chorale.experiments.bench.suite")
    rows: list[dict[str, Any]] = []
    for benchmark in suite.chosen(names or []):
        people.print(f"{benchmark.name}: beside {benchmark.reference}")
        rows += suite.rows_of(benchmark)
    if table is not None:
        markdown = importlib.import_module("chorale.experiments.bench.benchmark").markdown_table(rows)
        write_file(table, markdown.encode())
    failed = [row for row in rows if not row["holds"]]
    document = {"rows": rows, "holds": not failed, "history": str(_remember(rows))}
    if as_json:
        emit_json(document)
    else:
        results.print(_bench_table(rows))
    if failed:
        value = "; ".join(
            f"{row['benchmark']} {row['case']}: {', '.join(row['differing']) or 'goal'}" for row in failed
        )
        raise CheckFailed("facts of a benchmark must be those expected", value, "see chorale bench --json")


def _remember(rows: list[dict[str, Any]]) -> Any:
    """Append the run to the history, one JSON record in a line; return where that is."""
    from importlib import metadata  # noqa: PLC0415 (slow)

    home = Home.from_environment()
    path = home.create(home.root) / HISTORY
    record = {"at_s": time.time(), "version": metadata.version("chorale-collectives"), "rows": rows}
    with path.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(record, sort_keys=True) + "\n")
    return path


def _bench_table(rows: list[dict[str, Any]]) -> Table:
    table = ruled_table("benchmark", "case", "ratio", "goal", "", "facts")
    for row in rows:
        facts = "as expected" if not row["differing"] else f"differ: {', '.join(row['differing'])}"
        met = "met" if row["goal_met"] else "missed"
        style = None if row["holds"] else "bold red"
        table.add_row(row["benchmark"], row["case"], f"{row['ratio']:.2f}", f"{row['goal']:g}", met, facts, style=style)
    return table
