"""`chorale watch`: keep a fabric tuned."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chorale.synth.errors import InvalidInput
from chorale.tuner.cli.application import AsJson
from chorale.tuner.cli.output import emit_json
from chorale.tuner.files.home import Home
from chorale.tuner.reports.tables import printable

if TYPE_CHECKING:
    from chorale.tuner.watch.watcher import WatchConfig


File = Annotated[Path, typer.Argument(help="What to watch: a YAML file, see --schema.", metavar="FABRIC.yaml")]
Once = Annotated[bool, typer.Option("--once", help="Publish a table for the fabric as it is, and end.")]
Schema = Annotated[bool, typer.Option("--schema", help="Print what the file may say, as JSON Schema.")]
Hold = Annotated[bool, typer.Option("--hold", help="Have the watch of the file publish nothing until --release.")]
Release = Annotated[bool, typer.Option("--release", help="End a hold: what is planned is published.")]
RollBack = Annotated[bool, typer.Option("--roll-back", help="Hold, and publish the table before again.")]


def watch(
    file: File = Path("fabric.yaml"),
    once: Once = False,
    schema: Schema = False,
    hold: Hold = False,
    release: Release = False,
    roll_back: RollBack = False,
    as_json: AsJson = False,
) -> None:
    """Watch the links of a fabric; plan, compare and publish a new tuning table when they change.

    Jobs whose CHORALE_TABLE is the published file take each new table while they run. With --json every event is a
    document on a line of its own. Ctrl-C ends it; what is published stays. Started again it goes on where it was.

    Example: chorale watch cube.yaml --json
    """
    from chorale.tuner.watch.watcher import WatchConfig, read_watch_config  # noqa: PLC0415 - not for --help

    if schema:
        emit_json(WatchConfig.model_json_schema())
        return
    flags = {"once": once, "hold": hold, "release": release, "roll-back": roll_back}
    chosen = [f"--{name}" for name, is_chosen in flags.items() if is_chosen]
    if len(chosen) > 1:
        raise InvalidInput("a command must do one thing", " and ".join(chosen), "name one of them")
    config = read_watch_config(file)
    if hold or release or roll_back:
        _request(config.name, release=release, roll_back=roll_back)
    else:
        _run(config, once, as_json)


def _run(config: WatchConfig, once: bool, as_json: bool) -> None:
    from chorale.tuner.watch.watcher import open_watch  # noqa: PLC0415 - not for --help

    ended: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda caught, _frame: ended.append(caught))
    running = open_watch(config)
    for event in running.run(lambda: bool(ended) or (once and running.renewal.present is not None)):
        sys.stdout.write(f"{json.dumps(event) if as_json else printable(event_line(event))}\n")
        sys.stdout.flush()
    if ended:
        raise typer.Exit(130 if ended[0] == signal.SIGINT else 0)


def _request(name: str, *, release: bool, roll_back: bool) -> None:
    """Ask the watch called `name` for it, by files that it looks for each second."""
    from chorale.tuner.watch.watcher import (  # noqa: PLC0415
        HOLD,
        ROLL_BACK,
        watch_folder,
    )

    folder = watch_folder(Home.from_environment(), name)
    if not folder.is_dir():
        raise InvalidInput("a watch of this data folder must have the name", name, "start it, or set CHORALE_HOME")
    if release:
        (folder / HOLD).unlink(missing_ok=True)
        return
    (folder / HOLD).touch()
    if roll_back:
        (folder / ROLL_BACK).touch()


def event_line(event: dict[str, Any]) -> str:
    """Return an event as a line for people."""
    match event["event"]:
        case "state":
            rate = f", {event['rate'] / 1e6:.3g} Mbit/s" if event["rate"] else ""
            return f"link {event['link']} is {event['to']} (was {event['from']}{rate})"
        case "replan" if "error" in event:
            return f"no plan: {event['error']}"
        case "replan":
            gaps = ", ".join(f"{name} gap {cost['gap']}" for name, cost in event["costs"].items())
            ahead = ", ahead" if event["ahead"] else ""
            return f"planned for: {event['state']} ({gaps}; {event['seconds']:.2f} s{ahead})"
        case "canary":
            rows = ", ".join(f"{row['collective']} {row['size_bytes']} B x{row['ratio']:.2f}" for row in event["rows"])
            slower = any(row["slower"] for row in event["rows"])
            outcome = "; where it is slower, the present programs stay" if slower else ""
            return f"time by that of the present table: {rows or '; '.join(event['failures']) or 'the same'}{outcome}"
        case "publish":
            stages = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in event["stages"].items())
            after = f"{event['seconds']:.1f} s after the first sign ({stages})"
            return f"published table {event['table'][:12]} {after}: {event['why']}"
        case "resume":
            return f"goes on with table {event['table'][:12]}: {event['why']}"
    return f"{event['event']}: {event.get('why', '')}"
