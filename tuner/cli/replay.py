"""`chorale replay`: how good the tuner is on recorded runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from chorale.tuner.cli.options import AsJson
from chorale.tuner.cli.output import emit_json, people, results
from chorale.tuner.reports.lazy_rich import Table


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("replay")(replay)


def replay(
    records: Annotated[
        list[Path],
        typer.Argument(metavar="RECORDS…", help="Tables of runs (.csv), logs of nccl-tests, or folders of logs."),
    ],
    trials: Annotated[int, typer.Option(min=1, max=10**4, help="Trials of each campaign, at most.")] = 30,
    seeds: Annotated[int, typer.Option(min=1, max=10**4, help="Campaigns of each task.")] = 10,
    noise: Annotated[
        str,
        typer.Option(
            help="none, lognormal:0.05 (any deviation), outliers, drift, bimodal or launch, on top of the record."
        ),
    ] = "none",
    sampler: Annotated[
        str, typer.Option(help="Who chooses the next point: as in campaign files, or forest (as in SMAC) or halving.")
    ] = "sizes-gp",
    prior: Annotated[str, typer.Option(help="Task or fabric among the records to learn from first, or none.")] = "none",
    as_json: AsJson = False,
) -> None:
    """Replay campaigns on recorded runs: the search and the answers of `chorale tune`, with times from the record.

    A task is a collective on a fabric: its configurations are the search space, the library's runs the baseline. The
    recorded times count as true; noise is drawn on top of them.

    Example: chorale replay runs.csv --noise launch --seeds 20
    """
    from chorale.tuner.replay.document import ReplayRequest, replay_document  # noqa: PLC0415 - Optuna takes a second

    request = ReplayRequest(tuple(records), trials, seeds, noise, sampler, None if prior == "none" else prior)
    document = replay_document(request, lambda name: people.print(f"{name} …", highlight=False, markup=False))
    if as_json:
        emit_json(document)
        return
    results.print(_table(document, noise, seeds))
    for task in document["tasks"]:
        if task["unchecked"]:
            share = f"{task['task']}: {task['unchecked']:.0%} of the times are unchecked"
            results.print(f"{share}, nobody knows whether results were right")
    results.print(f"{document['seconds']:.0f} s")


_NUMBERS = {"trials": "trials_to_5pct_mean", "all": "trials_to_5pct_all", "seconds": "seconds_ratio"}
_SHARES = {"wrong": "wrong_entries", "open": "undecided", "false": "false_wins", "cover": "coverage"}
_LEGEND = (
    "trials: until the mean over sizes is within 5 %, all: until every size is; seconds: to the mean, over those of "
    "measuring all of every trial; wrong: entries more than 5 % behind; open: undecided; false: programs named that "
    "are not faster than the library; cover: intervals that hold the truth"
)


def _table(document: dict[str, Any], noise: str, seeds: int) -> Table:
    title = f"{seeds} seeds, noise {noise}"
    table = Table(title=title, caption=_LEGEND, title_justify="left", caption_justify="left")
    for heading in ("task", *_NUMBERS, *_SHARES):
        table.add_column(heading, justify="left" if heading == "task" else "right", no_wrap=heading != "task")
    for task in document["tasks"]:
        shares = (task[key] for key in _SHARES.values())
        table.add_row(
            f"{task['task']}, {task['candidates']} x {task['sizes']}",
            *(f"{task[key]:.3g}" for key in _NUMBERS.values()),
            *("-" if share is None else f"{share:.1%}" for share in shares),
        )
    return table
