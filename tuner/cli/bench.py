"""`chorale bench`: our own benchmarks, beside references that run on the same machine at the same time."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import time
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from chorale.synth.errors import CheckFailed
from chorale.tuner.cli.options import AsJson
from chorale.tuner.cli.output import emit_json, people, results
from chorale.tuner.files.home import Home

HISTORY = "bench.jsonl"


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("bench")(bench)


def bench(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Benchmarks; default: all.")] = None,
    as_json: AsJson = False,
) -> None:
    """Run benchmarks, compare counts and certificates with those expected, and keep the history in the data folder.

    Exit code 1 if a fact differs. Goals are ratios to the reference; one of times that is missed is only told.

    Example: chorale bench rings
    """
    # The layer above this one: it is known by its name only, and loaded when it is asked for.
    suite = importlib.import_module("chorale.experiments.bench.suite")
    rows: list[dict[str, Any]] = []
    for benchmark in suite.chosen(names or []):
        people.print(f"{benchmark.name}: beside {benchmark.reference}")
        rows += suite.rows_of(benchmark)
    failed = [row for row in rows if not row["holds"]]
    document = {"rows": rows, "holds": not failed, "history": str(_remember(rows))}
    if as_json:
        emit_json(document)
    else:
        results.print(_table(rows))
    if failed:
        value = "; ".join(
            f"{row['benchmark']} {row['case']}: {', '.join(row['differing']) or 'goal'}" for row in failed
        )
        raise CheckFailed("facts of a benchmark must be those expected", value, "see chorale bench --json")


def _remember(rows: list[dict[str, Any]]) -> Any:
    """Append the run to the history, one JSON record in a line; return where that is."""
    home = Home.from_environment()
    path = home.create(home.root) / HISTORY
    record = {"at_s": time.time(), "version": importlib.metadata.version("chorale-collectives"), "rows": rows}
    with path.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(record, sort_keys=True) + "\n")
    return path


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table("benchmark", "case", "ratio", "goal", "", "facts", box=box.SIMPLE_HEAD)
    for row in rows:
        facts = "as expected" if not row["differing"] else f"differ: {', '.join(row['differing'])}"
        met = "met" if row["goal_met"] else "missed"
        style = None if row["holds"] else "bold red"
        table.add_row(row["benchmark"], row["case"], f"{row['ratio']:.2f}", f"{row['goal']:g}", met, facts, style=style)
    return table
