"""Defines the commands `chorale fabric` (emulated networks) and `chorale watch` (keep a fabric's table up to date)."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import psutil
import typer

from chorale.runners.fabric.fabric import EmulatedFabric, fabrics, processes_in, take_down
from chorale.runners.fabric.self_test import bring_up
from chorale.synth.errors import InvalidInput, printable
from chorale.synth.identity import parse_rational, rational_text
from chorale.tuner import Home, load_topology
from chorale.tuner.cli.application import AsJson, CommandLine
from chorale.tuner.cli.options import Spec, emit_json
from chorale.tuner.reports.tables import Columns, Result, rows_table

DEFAULT_NAME = "default"

fabric_app = CommandLine(help="Bring topologies up as emulated networks on this machine.", no_args_is_help=True)


@fabric_app.command("up")
def up(
    spec: Spec,
    link_mbps: Annotated[str, typer.Option(metavar="R")] = "100",
    name: str = DEFAULT_NAME,
    force: bool = False,
) -> Result:
    """Emulate a topology with network namespaces: one for each rank and switch, every link limited to its rate.

    A self-test takes a second or two. The fabric stays until `chorale fabric down NAME` or the next reboot. Repeating
    the command changes nothing.

    Args:
        link_mbps: Mbit/s of a link of capacity 1; if the topology has bandwidths in GB/s, of its fastest link.
        name: Name of the fabric, if you run more than one.
        force: Keep the fabric even if its self-test fails.

    Example: chorale fabric up ring:4 --link-mbps 100
    """
    topology = load_topology(spec)
    rate = parse_rational(link_mbps, "the link rate (Mbit/s)")
    wanted = (name, topology.id, rate)
    fabric = next((one for one in fabrics() if (one.name, one.topology_id, one.link_mbps) == wanted), None)
    is_new = fabric is None
    if fabric is None:
        fabric = bring_up(topology, rate, name, force=force)
    fabric.require_links()
    return Result(
        _facts(fabric) | {"already_up": not is_new},
        f"{fabric.spec} {'is' if is_new else 'was already'} up as {name}, {_size(fabric)}",
        f"links: {_links(fabric)}",
        next_step=f"chorale synth {quote(fabric.spec)} -o schedule.parquet, then "
        "chorale run schedule.parquet --runner local --where fabric",
    )


@fabric_app.command("status")
def status() -> Result:
    """List the fabrics of this user."""
    running = fabrics()
    documents = [_facts(fabric) for fabric in running]
    columns: Columns = {
        "name": lambda row: row[0].name,
        "topology": lambda row: row[0].spec,
        "size": lambda row: _size(row[0]),
        "links": lambda row: _links(row[0]),
        "up for": lambda row: f"{row[1]['up_s'] / 60:.0f} min",
        "processes": lambda row: row[1]["processes"],
    }
    table = rows_table(zip(running, documents, strict=True), columns, "Fabrics that are up")
    return Result({"fabrics": documents}, table if running else "no fabric is up")


@fabric_app.command("down")
def down(name: Annotated[str | None, typer.Argument(metavar="NAME")] = None) -> Result:
    """Remove a fabric and kill the processes that run in it. Without NAME, all fabrics of this user are removed.

    These include the fabrics that you brought up in other shells.

    Args:
        name: Fabric to remove, `default` if it was brought up without --name [all fabrics of this user].

    Example: chorale fabric down default
    """
    running = fabrics()
    gone = [fabric for fabric in running if name in (None, fabric.name)]
    for fabric in gone:
        take_down(fabric)
    names, others = [fabric.name for fabric in gone], [fabric.name for fabric in running if fabric not in gone]
    text = f"down: {', '.join(names)}" if names else "nothing was up"
    if name is None and len(names) > 1:
        text += f" (all of this user's; `chorale fabric down {names[0]}` removes only one)"
    if not names and others:
        text = f"no fabric {name} is up, only {', '.join(others)}"
    return Result({"down": names}, text)


@fabric_app.command("exec", context_settings={"ignore_unknown_options": True})
def execute(
    rank: int, command: Annotated[list[str], typer.Argument(metavar="COMMAND…")], name: str = DEFAULT_NAME
) -> None:
    """Run a command on a rank of a fabric and exit with its exit code.

    Args:
        rank: Rank on which to run.
        command: Command to run, with its arguments.
        name: Name of the fabric.

    Example: chorale fabric exec 0 -- ip route
    """
    running = {fabric.name: fabric for fabric in fabrics()}
    if name not in running:
        up = ", ".join(running) or "none"
        raise InvalidInput("the fabric {} is not up", name, f"choose one that is up ({up}) with --name")
    done = subprocess.run([*running[name].command_prefix(rank), *command], check=False)  # noqa: S603 - the user's own command
    raise typer.Exit(done.returncode)


def _size(fabric: EmulatedFabric) -> str:
    switches = f" and {fabric.switches} switches" if fabric.switches else ""
    rate = f"links of {float(fabric.link_mbps):g} Mbit/s, {fabric.bits_per_s / 1e6:g} together"
    return f"{fabric.ranks} ranks{switches}, {rate}"


def _links(fabric: EmulatedFabric) -> str:
    """Return a text about the process that carries packets: its rate in the self-test, or BROKEN if it has ended."""
    if fabric.is_broken:
        return f"BROKEN: process {fabric.wire_pid} has ended; take the fabric down"
    efficiency = fabric.efficiency
    return "wire" if efficiency is None else f"wire, {efficiency:.0%} of the rate when all are busy"


def _facts(fabric: EmulatedFabric) -> dict[str, Any]:
    return {
        "name": fabric.name,
        "spec": fabric.spec,
        "topology_id": fabric.topology_id,
        "link_mbps": rational_text(fabric.link_mbps),
        "total_mbps": fabric.bits_per_s / 1e6,
        "ranks": [
            {"rank": rank, "address": fabric.address(rank), "namespace": fabric.hostname(rank)}
            for rank in range(fabric.ranks)
        ],
        "switches": fabric.switches,
        "links": {name: getattr(fabric, name) for name in ("threads", "wire_pid", "efficiency")}
        | {"broken": fabric.is_broken},
        "user_namespace": fabric.in_user_namespace,
        "holder_pid": fabric.pid,
        "up_s": round(time.time() - psutil.Process(fabric.pid).create_time(), 1),
        "processes": len(processes_in(fabric.networks())),
        "command_prefix": list(fabric.command_prefix(0)),
    }


def watch(
    file: Annotated[Path, typer.Argument(metavar="FABRIC.yaml")] = (Path("fabric.yaml")),
    once: bool = False,
    schema: bool = False,
    hold: bool = False,
    release: bool = False,
    roll_back: bool = False,
    as_json: AsJson = False,
) -> None:
    """Watch the links of a fabric; plan, compare and publish a new tuning table when they change.

    Jobs whose CHORALE_TABLE is the published file load each new table while they run. With --json, every event is one
    JSON document on its own line. Ctrl-C ends the watch and keeps the published table; the next start continues.

    Args:
        file: YAML file that describes the watch, see --schema.
        once: Publish one table for the current state of the fabric, and exit.
        schema: Print the JSON Schema of the file.
        hold: Stop the running watch from publishing until --release.
        release: End a hold, so that planned tables are published.
        roll_back: Publish the previous table again, and hold.

    Example: chorale watch cube.yaml --json
    """
    from chorale.tuner.watch import watcher  # noqa: PLC0415 - not for --help

    if schema:
        emit_json(watcher.WatchConfig.model_json_schema())
        return
    flags = {"once": once, "hold": hold, "release": release, "roll-back": roll_back}
    chosen = [f"--{name}" for name, is_chosen in flags.items() if is_chosen]
    if len(chosen) > 1:
        raise InvalidInput("only one of {} can be used at a time", " and ".join(chosen), "leave out the others")
    config = watcher.read_watch_config(file)
    if hold or release or roll_back:  # a request is a file, for which the watcher looks every second
        folder = watcher.watch_folder(Home.from_environment(), config.name)
        if not folder.is_dir():
            rule = "this data folder has no watch named {}"
            raise InvalidInput(rule, config.name, "start it, or set CHORALE_HOME")
        if release:
            (folder / watcher.HOLD).unlink(missing_ok=True)
            return
        (folder / watcher.HOLD).touch()
        if roll_back:
            (folder / watcher.ROLL_BACK).touch()
        return
    ended: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda caught, _frame: ended.append(caught))
    running = watcher.open_watch(config, waits=not once)
    for event in running.run(lambda: bool(ended) or (once and running.is_current)):
        sys.stdout.write(f"{json.dumps(event) if as_json else printable(event_line(event))}\n")
        sys.stdout.flush()
    if ended:
        raise typer.Exit(130 if ended[0] == signal.SIGINT else 0)


def event_line(event: dict[str, Any]) -> str:
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
            outcome = "; where it is slower, the current programs stay" if slower else ""
            return f"time relative to the current table: {rows or '; '.join(event['failures']) or 'the same'}{outcome}"
        case "publish":
            stages = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in event["stages"].items())
            after = f"{event['seconds']:.1f} s after the first sign of a change ({stages})"
            return f"published table {event['table'][:12]} {after}: {event['why']}"
        case "resume":
            return f"continues with table {event['table'][:12]}: {event['why']}"
    return f"{event['event']}: {event.get('why', '')}"
