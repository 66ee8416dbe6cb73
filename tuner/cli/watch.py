"""`chorale watch`: keep a fabric tuned."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from chorale.tuner.cli.options import AsJson
from chorale.tuner.cli.output import emit_json


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("watch")(watch)


def watch(
    file: Annotated[Path, typer.Argument(help="What to watch: a YAML file, see --schema.", metavar="FABRIC.yaml")] = (
        Path("fabric.yaml")
    ),
    once: Annotated[bool, typer.Option("--once", help="Publish a table for the fabric as it is, and end.")] = False,
    schema: Annotated[bool, typer.Option("--schema", help="Print what the file may say, as JSON Schema.")] = False,
    as_json: AsJson = False,
) -> None:
    """Watch the links of a fabric; plan, compare and publish a new tuning table when they change.

    Jobs whose CHORALE_TABLE is the published file take each new table while they run. With --json every event is a
    document on a line of its own. Ctrl-C ends it; what is published stays.

    Example: chorale watch cube.yaml --json
    """
    from chorale.tuner.watch.assembly import open_watch, read_watch_config  # noqa: PLC0415 - not for --help
    from chorale.tuner.watch.config import WatchConfig  # noqa: PLC0415

    if schema:
        emit_json(WatchConfig.model_json_schema())
        return
    ended: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda caught, _frame: ended.append(caught))
    running = open_watch(read_watch_config(file))
    is_over = lambda: bool(ended) or (once and running.renewal.present is not None)  # noqa: E731
    for event in running.run(is_over):
        sys.stdout.write(f"{json.dumps(event) if as_json else event_line(event)}\n")
        sys.stdout.flush()
    if ended:
        raise typer.Exit(130 if ended[0] == signal.SIGINT else 0)


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


def _resume_line(event: dict[str, Any]) -> str:
    return f"goes on with table {event['table'][:12]}: {event['why']}"


_LINES = {
    "state": _state_line,
    "replan": _replan_line,
    "canary": _canary_line,
    "publish": _publish_line,
    "resume": _resume_line,
}
