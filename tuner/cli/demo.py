"""`chorale demo`: a tuned answer and a picture within a minute, on this machine's cores."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from chorale.runners.api.units import format_size, parse_sizes
from chorale.synth.build.request import ScheduleRequest
from chorale.synth.build.schedules import verified_schedule
from chorale.synth.collective import ALLREDUCE
from chorale.synth.errors import ChoraleError
from chorale.synth.executor.serial import SerialExecutor
from chorale.synth.methods.method import Options
from chorale.synth.topology.topology import Topology
from chorale.synth.verify.verified import VerifiedSchedule
from chorale.tuner.auto.bars_svg import bars_svg
from chorale.tuner.auto.contest import MeasuredContest, contest
from chorale.tuner.auto.fabric_discovery import EMULATED
from chorale.tuner.cli.options import AsJson
from chorale.tuner.cli.output import emit_json, people, results
from chorale.tuner.files.home import Home
from chorale.tuner.files.read_write import write_file
from chorale.tuner.files.schedule_files import save_schedule
from chorale.tuner.files.topology_specs import load_topology
from chorale.tuner.plots.topology_svg import topology_svg
from chorale.tuner.reports.lazy_rich import Table
from chorale.tuner.reports.quantities import seconds_text

METHODS = ("bfb", "biring", "ring")
BASELINE = "ring"
SIZES = "16KiB,64KiB,256KiB"
_LIMIT_S = 45.0


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("demo")(demo)


def demo(
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="Folder to write to; made if it is missing.")
    ] = Path("chorale-demo"),
    as_json: AsJson = False,
) -> None:
    """Tune an allreduce over eight processes that are joined like the corners of a cube, and draw the answer.

    Three schedules are made, verified and run over emulated links; every element of every result is checked. Where
    processes cannot be started, times are simulated, and it says so. Takes less than a minute.

    Example: chorale demo
    """
    network = load_topology(EMULATED)
    people.print(f"making and verifying {', '.join(METHODS)} for an allreduce on {EMULATED}", highlight=False)
    schedules = {method: _schedule(network, method) for method in METHODS}
    people.print("running them by turns", highlight=False)
    measured, runner, notice = _measured(schedules)
    rows = measured.rows()
    winner = min(METHODS, key=lambda name: sum(row["times_us"][name] / row["times_us"][BASELINE] for row in rows))
    output.mkdir(parents=True, exist_ok=True)
    picture, drawing, best = output / "times.svg", output / "network.svg", output / "best.parquet"
    write_file(picture, bars_svg(f"allreduce on {EMULATED}, {runner} runner", rows).encode())
    write_file(drawing, (topology_svg(network) or "").encode())
    save_schedule(schedules[winner], str(best))
    files = {"picture": str(picture), "network": str(drawing), "schedule": str(best)}
    if as_json:
        emit_json({"runner": runner, "notice": notice, "results": rows, "best": winner, **files})
        return
    results.print(_table(rows, runner))
    for line in filter(None, (notice, f"the answer: {winner}; picture {picture}, network {drawing}, schedule {best}")):
        results.print(line)
    results.print(f"next: chorale auto, chorale show {best}, chorale tune examples/quickstart.yaml")


def _schedule(network: Topology, method: str) -> VerifiedSchedule:
    return verified_schedule(ScheduleRequest(network, ALLREDUCE, method, Options()), SerialExecutor())


def _measured(schedules: dict[str, VerifiedSchedule]) -> tuple[MeasuredContest, str, str | None]:
    """Return what was measured by processes here, or simulated where that cannot be, and why then."""
    home, sizes = Home.from_environment().root, parse_sizes(SIZES)
    try:
        return contest(schedules, "local", sizes, home, repeats=3, timeout_s=_LIMIT_S), "local", None
    except ChoraleError as error:
        options = {"link_mbps": 1000}
        simulated = contest(schedules, "simulated", sizes, home, options=options, repeats=1)
        return simulated, "simulated", f"simulated, since processes could not be measured here: {error}"


def _table(rows: list[dict[str, Any]], runner: str) -> Table:
    table = Table(title=f"allreduce on {EMULATED}, {runner} runner")
    for heading in ("size", *METHODS, "best", f"beside {BASELINE}"):
        table.add_column(heading, justify="right")
    for row in rows:
        times, best = row["times_us"], row["best"]
        gain = f"{times[BASELINE] / times[best]:.2f}× as fast"
        table.add_row(
            format_size(row["size_bytes"]), *(seconds_text(times[name] / 1e6) for name in METHODS), best, gain
        )
    return table
