"""`chorale watch`: keep a fabric tuned."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chorale.synth.errors import InvalidInput
from chorale.tuner.cli.options import AsJson
from chorale.tuner.cli.output import emit_json
from chorale.tuner.files.home import Home

if TYPE_CHECKING:
    from chorale.tuner.watch.config import WatchConfig


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("watch")(watch)


File = Annotated[Path, typer.Argument(help="What to watch: a YAML file, see --schema.", metavar="FABRIC.yaml")]
Once = Annotated[bool, typer.Option("--once", help="Publish a table for the fabric as it is, and end.")]
Schema = Annotated[bool, typer.Option("--schema", help="Print what the file may say, as JSON Schema.")]
Detach = Annotated[bool, typer.Option("--detach", help="Let it live in a Ray cluster that runs, and return.")]
Follow = Annotated[bool, typer.Option("--follow", help="Print what the detached watch of the file does.")]
Stop = Annotated[bool, typer.Option("--stop", help="End the detached watch of the file.")]
Hold = Annotated[bool, typer.Option("--hold", help="Have the watch of the file publish nothing until --release.")]
Release = Annotated[bool, typer.Option("--release", help="End a hold: what is planned is published.")]
RollBack = Annotated[bool, typer.Option("--roll-back", help="Hold, and publish the table before again.")]
Address = Annotated[
    str | None, typer.Option("--address", metavar="HOST:PORT", help="Ray cluster to work on; else RAY_ADDRESS.")
]


def watch(
    file: File = Path("fabric.yaml"),
    once: Once = False,
    schema: Schema = False,
    detach: Detach = False,
    follow: Follow = False,
    stop: Stop = False,
    hold: Hold = False,
    release: Release = False,
    roll_back: RollBack = False,
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Watch the links of a fabric; plan, compare and publish a new tuning table when they change.

    Jobs whose CHORALE_TABLE is the published file take each new table while they run. With --json every event is a
    document on a line of its own. Ctrl-C ends it; what is published stays. Started again it goes on where it was.

    Example: chorale watch cube.yaml --json
    """
    from chorale.tuner.watch.assembly import read_watch_config  # noqa: PLC0415 - not for --help
    from chorale.tuner.watch.config import WatchConfig  # noqa: PLC0415

    if schema:
        emit_json(WatchConfig.model_json_schema())
        return
    flags = {"once": once, "detach": detach, "follow": follow, "stop": stop, "hold": hold, "release": release}
    chosen = [name for name, is_chosen in (flags | {"roll-back": roll_back}).items() if is_chosen]
    if len(chosen) > 1:
        value = " and ".join(f"--{name}" for name in chosen)
        raise InvalidInput("a command must do one thing", value, "name one of them")
    config = read_watch_config(file)
    if hold or release or roll_back:
        _request(config.name, release=release, roll_back=roll_back)
    elif detach or follow or stop:
        from chorale.tuner.cli.watch_detached import do_detached  # noqa: PLC0415 - as above

        do_detached(chosen[0], config, address, lambda event: write_event(event, as_json))
    else:
        _run(config, once, as_json)


def _run(config: WatchConfig, once: bool, as_json: bool) -> None:
    from chorale.tuner.watch.assembly import open_watch  # noqa: PLC0415 - not for --help

    ended: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda caught, _frame: ended.append(caught))
    running = open_watch(config)
    is_over = lambda: bool(ended) or (once and running.renewal.present is not None)  # noqa: E731
    for event in running.run(is_over):
        write_event(event, as_json)
    if ended:
        raise typer.Exit(130 if ended[0] == signal.SIGINT else 0)


def _request(name: str, *, release: bool, roll_back: bool) -> None:
    """Ask the watch called `name` for it, by files that it looks for each second."""
    from chorale.tuner.watch.assembly import watch_folder  # noqa: PLC0415 - not for --help
    from chorale.tuner.watch.records import HOLD, ROLL_BACK  # noqa: PLC0415

    folder = watch_folder(Home.from_environment(), name)
    if not folder.is_dir():
        raise InvalidInput("a watch of this data folder must have the name", name, "start it, or set CHORALE_HOME")
    if release:
        (folder / HOLD).unlink(missing_ok=True)
        return
    (folder / HOLD).touch()
    if roll_back:
        (folder / ROLL_BACK).touch()


def write_event(event: dict[str, Any], as_json: bool) -> None:
    """Print an event, at once."""
    sys.stdout.write(f"{json.dumps(event) if as_json else event_line(event)}\n")
    sys.stdout.flush()


def event_line(event: dict[str, Any]) -> str:
    """Return an event as a line for people."""
    line = _LINES.get(event["event"])
    return f"{event['event']}: {event.get('why', '')}" if line is None else line(event)


def _state_line(event: dict[str, Any]) -> str:
    rate = f", {event['rate'] / 1e6:.3g} Mbit/s" if event["rate"] else ""
    return f"link {event['link']} is {event['to']} (was {event['from']}{rate})"


def _replan_line(event: dict[str, Any]) -> str:
    if "error" in event:
        return f"no plan: {event['error']}"
    gaps = ", ".join(f"{name} gap {cost['gap']}" for name, cost in event["costs"].items())
    return f"planned for: {event['state']} ({gaps}; {event['seconds']:.2f} s{', ahead' if event['ahead'] else ''})"


def _canary_line(event: dict[str, Any]) -> str:
    rows = ", ".join(f"{row['collective']} {row['size_bytes']} B x{row['ratio']:.2f}" for row in event["rows"])
    slower = any(row["slower"] for row in event["rows"])
    outcome = "; where it is slower, the present programs stay" if slower else ""
    return f"time by that of the present table: {rows or '; '.join(event['failures']) or 'the same'}{outcome}"


def _publish_line(event: dict[str, Any]) -> str:
    stages = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in event["stages"].items())
    after = f"{event['seconds']:.1f} s after the first sign ({stages})"
    return f"published table {event['table'][:12]} {after}: {event['why']}"


def _retune_line(event: dict[str, Any]) -> str:
    sizes = ", ".join(map(str, event.get("sizes_bytes", [])))
    ratios = ", ".join(f"{row['ratio']:.2f}" for row in event.get("rows", []) if "ratio" in row)
    what = f"{event.get('collective', 'a collective')} of {sizes} bytes" if sizes else "a campaign"
    facts = [f"jobs take {ratios} times as long as predicted"] if ratios else []
    return f"tuning {what}: {'; '.join([event['stage'], *facts, *([event['why']] if 'why' in event else [])])}"


def _resume_line(event: dict[str, Any]) -> str:
    return f"goes on with table {event['table'][:12]}: {event['why']}"


_LINES = {
    "state": _state_line,
    "replan": _replan_line,
    "canary": _canary_line,
    "publish": _publish_line,
    "resume": _resume_line,
    "retune": _retune_line,
}
