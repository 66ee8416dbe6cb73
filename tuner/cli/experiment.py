"""Defines `chorale experiment` (compare results with published ones) and `bench` (run our benchmarks)."""

import importlib
import json
import time
from importlib.metadata import version
from typing import Annotated, Any

import typer

from chorale.synth.errors import CheckFailed, InvalidInput
from chorale.tuner.cli.options import ExecutorName, PlotFile, Workers, people, status_line
from chorale.tuner.config.building import EXECUTORS, SERIAL, open_executor
from chorale.tuner.files.home import Home
from chorale.tuner.reports.tables import Result, ruled_table


def experiment(
    name: Annotated[str, typer.Argument(metavar="list | NAME")],
    quick: bool = False,
    plot: PlotFile = None,
    resume: bool = False,
    executor: ExecutorName = "serial",
    workers: Workers = None,
) -> Result:
    """Run an experiment row by row, and compare its results with published ones.

    Exit code 1 if a row is not as published or claimed. Every row names the spec and method that reproduce it. An
    experiment is computed in parts, and each finished part is stored in the data folder for --resume. Parts run in the
    executor, except those that measure times: these run one at a time.

    Args:
        name: Experiment to run, or `list` to list them.
        quick: Leave out rows that take longer than about 10 s.
        resume: Reuse the parts that an earlier run of the same code finished.

    Example: chorale experiment direct-connect-table-5
    """
    # This module is in the layer above, so it is imported by name and only when needed.
    runs = importlib.import_module("chorale.experiments.framework.run")
    if name == "list":
        experiments = runs.summaries()
        table = ruled_table("name", "question", "source")
        for entry in experiments:
            table.add_row("\n".join((entry.name, *entry.aliases)), entry.question, entry.source)
        return Result({"experiments": [entry._asdict() for entry in experiments]}, table)
    chosen = runs.load(name)
    if plot is not None and chosen.plot is None:
        raise InvalidInput("the experiment {} has no plot", name, "leave out --plot")
    home = Home.from_environment()
    store = runs.PartStore(home.create(home.experiments))
    # Experiments that measure times run their parts in this process: starting Ray here would add a second cluster.
    where = SERIAL if chosen.alone and executor in EXECUTORS else executor
    with open_executor(where, workers) as opened, status_line(name) as show:
        result = runs.run_experiment(
            chosen, quick, opened, store=store, resume=resume,
            progress=lambda what, done, total: show(f"part {done + 1} of {total}: {what}"),
        )  # fmt: skip
    if plot is not None:
        chosen.plot(result.rows, plot)
    document = result.document(chosen, quick)
    people.print(f"{result.seconds:.1f} s")
    table = ruled_table(*(column.heading for column in chosen.columns), title=chosen.question, caption=chosen.source)
    failed = []
    for row in result.rows:
        texts = [column.text(row) for column in chosen.columns]
        table.add_row(*texts, style=None if row["holds"] else "bold red")
        if not row["holds"]:  # identify the row by its network if it has one, else by its first two columns
            which = f"{row['nodes']} nodes, {row['spec']}" if "nodes" in row else ", ".join(texts[:2])
            failed.append(f"{which}: {row['reason']}")
    rule, way_out = "some rows are not as published or claimed: {}", f"see chorale experiment {name} --json"
    failure = CheckFailed(rule, "; ".join(failed), way_out) if failed else None
    return Result(document, table, failure=failure)


HISTORY = "bench.jsonl"


def bench(names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...")] = None) -> Result:
    """Run benchmarks, compare facts such as counts with expected ones, and keep a history.

    The history is a file in the data folder. Exit code 1 if a fact differs. A ratio says how many times better our code
    is than a reference, such as NetworkX. A ratio of times below its goal does not change the exit code.

    Args:
        names: Benchmarks; default: all.

    Example: chorale bench rings
    """
    suite = importlib.import_module("chorale.experiments.bench.suite")
    rows: list[dict[str, Any]] = []
    for benchmark in suite.chosen(names or []):
        people.print(f"{benchmark.name}: compared with {benchmark.reference}")
        rows += suite.rows_of(benchmark)
    shown, failed = ruled_table("benchmark", "case", "ratio", "goal", "", "facts"), []
    for row in rows:
        facts = "as expected" if not row["differing"] else f"differ: {', '.join(row['differing'])}"
        texts = f"{row['ratio']:.2f}", f"{row['goal']:g}", "met" if row["goal_met"] else "missed", facts
        shown.add_row(row["benchmark"], row["case"], *texts, style=None if row["holds"] else "bold red")
        if not row["holds"]:
            failed.append(f"{row['benchmark']} {row['case']}: {', '.join(row['differing']) or 'goal'}")
    # Append the run to the history, one JSON record per line, and return the path of the history
    home = Home.from_environment()
    path = home.create(home.root) / HISTORY
    record = {"at_s": time.time(), "version": version("chorale-collectives"), "rows": rows}
    with path.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(record, sort_keys=True) + "\n")
    document = {"rows": rows, "holds": not failed, "history": str(path)}
    rule = "the benchmark computed other facts than expected: {}"
    failure = CheckFailed(rule, "; ".join(failed), "see `chorale bench --json`") if failed else None
    return Result(document, shown, failure=failure)
