"""`chorale fabric`: topologies as emulated networks of namespaces on this machine."""

from __future__ import annotations

import subprocess
import time
from typing import Annotated, Any

import psutil
import typer
from rich.table import Table

from chorale.runners.fabric.fabric import EmulatedFabric, fabrics, processes_in, require_free, take_down
from chorale.runners.fabric.links import LinkKind, LinkOptions, parse_overrides
from chorale.runners.fabric.plan import plan_fabric
from chorale.runners.fabric.self_test import bring_up_tested
from chorale.synth.errors import InvalidInput
from chorale.synth.identity import parse_rational, rational_text
from chorale.synth.names import name_among
from chorale.tuner.cli.application import CommandLine
from chorale.tuner.cli.options import Spec
from chorale.tuner.files.topology_specs import load_topology
from chorale.tuner.reports.tables import Result

DEFAULT_NAME = "default"

fabric_app = CommandLine(help="Bring topologies up as emulated networks on this machine.", no_args_is_help=True)


@fabric_app.command("up")
def up(
    spec: Spec,
    link_mbps: Annotated[
        str, typer.Option(metavar="R", help="Mbit/s of a link of capacity 1, or of the fastest on fabrics in GB/s.")
    ] = "100",
    name: Annotated[str, typer.Option(help="Name, to have several side by side.")] = DEFAULT_NAME,
    latency_us: Annotated[
        str, typer.Option(metavar="L", help="Microseconds that a packet takes on a link besides.")
    ] = "0",
    loss: Annotated[str, typer.Option(metavar="P", help="The part of packets that a link loses, such as 0.001.")] = "0",
    link: Annotated[
        list[str] | None,
        typer.Option(metavar="LINK", help="What differs for a link: SRC-DST:mbps=R,latency-us=L,loss=P. Repeatable."),
    ] = None,
    links: Annotated[
        str,
        typer.Option(metavar="KIND", help="wire (honest), bucket (of the kernel), or auto: wire where it can be had."),
    ] = "auto",
    seed: Annotated[int, typer.Option(min=0, help="Draws which packets are lost.")] = 0,
    force: Annotated[bool, typer.Option("--force", help="Keep it whatever its self-test shows.")] = False,
) -> Result:
    """Bring a topology up as a network of namespaces: one for each rank and switch, every link held to its rate.

    It tests itself for a second or two, and stays until `chorale fabric down` or the next reboot. The same command
    again changes nothing.

    Example: chorale fabric up ring:4 --link-mbps 100
    """
    topology = load_topology(spec)
    rate = parse_rational(link_mbps, "the link rate (Mbit/s)")
    options = LinkOptions(
        _kind(links),
        parse_rational(latency_us, "the latency of links (microseconds)"),
        parse_rational(loss, "the loss of links"),
        parse_overrides(link or []),
        seed,
    )
    plan_fabric(topology, rate, name, options)
    fabric = next((item for item in fabrics() if item.name == name and item.is_as(topology.id, rate, options)), None)
    is_new = fabric is None
    if fabric is None:
        require_free(name)
        fabric = bring_up_tested(topology, rate, name, options, force=force)
    fabric.require_links()
    return Result(
        _facts(fabric) | {"already_up": not is_new},
        f"{fabric.spec} {'is' if is_new else 'was already'} up as {name}, {_size(fabric)}",
        f"links: {_links(fabric)}",
    )


@fabric_app.command("status")
def status() -> Result:
    """List the fabrics of this user."""
    running = fabrics()
    documents = [_facts(fabric) for fabric in running]
    table = Table("name", "topology", "size", "links", "up for", "processes", title="Fabrics that are up")
    for fabric, facts in zip(running, documents, strict=True):
        up_for = f"{facts['up_s'] / 60:.0f} min"
        table.add_row(fabric.name, fabric.spec, _size(fabric), _links(fabric), up_for, str(facts["processes"]))
    return Result({"fabrics": documents}, table if running else "no fabric is up")


@fabric_app.command("down")
def down(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Which; without it all of this user's.")] = None,
) -> Result:
    """Remove a fabric, or all of this user's, and kill what runs in them."""
    gone = [fabric for fabric in fabrics() if name in (None, fabric.name)]
    for fabric in gone:
        take_down(fabric)
    names = [fabric.name for fabric in gone]
    return Result({"down": names}, f"down: {', '.join(names)}" if names else "nothing was up")


@fabric_app.command("exec", context_settings={"ignore_unknown_options": True})
def execute(
    rank: Annotated[int, typer.Argument(help="On which rank.")],
    command: Annotated[list[str], typer.Argument(metavar="COMMAND…", help="What to run there.")],
    name: Annotated[str, typer.Option(help="In which fabric.")] = DEFAULT_NAME,
) -> None:
    """Run a command as a process on a rank of a fabric and pass on its exit code.

    Example: chorale fabric exec 0 -- ip route
    """
    running = {fabric.name: fabric for fabric in fabrics()}
    if name not in running:
        up = ", ".join(running) or "none"
        raise InvalidInput(
            "a fabric must be up to run something in it", name, f"choose one that is (now: {up}) by --name"
        )
    done = subprocess.run([*running[name].command_prefix(rank), *command], check=False)  # noqa: S603 - the user's own
    raise typer.Exit(done.returncode)


def _size(fabric: EmulatedFabric) -> str:
    switches = f" and {fabric.switches} switches" if fabric.switches else ""
    rate = f"links of {float(fabric.link_mbps):g} Mbit/s, {fabric.bits_per_s / 1e6:g} together"
    return f"{fabric.ranks} ranks{switches}, {rate}"


def _kind(text: str) -> LinkKind | None:
    name = name_among("kind of links", text, ("auto", *LinkKind))
    return None if name == "auto" else LinkKind(name)


def _links(fabric: EmulatedFabric) -> str:
    """Return in words what carries packets, how honestly, and how well it did in the self-test."""
    links = fabric.links
    if fabric.is_broken:
        return f"BROKEN: process {links.wire_pid} has ended; take the fabric down"
    parts = [links.kind.value]
    if links.kind == LinkKind.BUCKET:
        parts.append(f"too fast for messages below {links.honest_bytes} bytes ({links.why_bucket})")
    if (test := links.self_test) is not None:
        parts.append(f"{test.efficiency:.0%} of the rate with all busy")
    return ", ".join(parts)


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
        "links": fabric.links.to_document() | {"broken": fabric.is_broken},
        "user_namespace": fabric.in_user_namespace,
        "holder_pid": fabric.pid,
        "up_s": round(time.time() - psutil.Process(fabric.pid).create_time(), 1),
        "processes": len(processes_in(fabric.networks())),
        "command_prefix": list(fabric.command_prefix(0)),
    }
