"""The program `chorale`: all its commands by name, its exit codes, and options that work for every command.

The function that implements a command has the name of the command. Its module is imported only when the command is
used. A group of commands is a `CommandLine` called `NAME_app`.
"""

import errno
import importlib
import os
import sys
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from chorale.runners.ray.watch import INSECURE_VARIABLE
from chorale.synth.errors import ChoraleError, InvalidInput, Unavailable
from chorale.synth.lazy_modules import missing_extra
from chorale.synth.shadowing import shadow_of
from chorale.tuner.cli.application import CommandLine
from chorale.tuner.cli.process import hide_passwords, print_error, stopping_in_order

COMMANDS: Mapping[str, tuple[str, str]] = {
    "topology": ("topology", "List the families of networks; show or import a network."),
    "find": (
        "topology", "Find topologies with the best trade-offs of steps and bandwidth, or the best for a workload.",
    ),
    "synth": ("synthesize", "Design a schedule for a topology, verify it chunk by chunk and prove how good it is."),
    "auto": ("auto", "Detect the fabric, prove how fast an allreduce can be on it, and suggest next commands."),
    "demo": ("auto", "Tune an allreduce of eight processes, connected like the corners of a cube, and draw it."),
    "verify": ("verify", "Replay a schedule or execute a program chunk by chunk; exit 0 if it is correct, 1 if not."),
    "lower": ("verify", "Lower a schedule to a program, and check the program before it is written."),
    "lift": ("verify", "Read a program back and check it against its collective; exit 0 if it is correct, 1 if not."),
    "show": ("show", "Show link loads and routes of a schedule, or link loads and the timeline of a program."),
    "export": ("verify", "Write a job folder: programs, environment, launch scripts, manifest and checklist."),
    "compare": ("show", "Compare exact costs, resources and predicted times; find the sizes at which each is faster."),
    "alltoall": ("alltoall", "Bound the rate of an all-to-all over any routes, or plan one for given sizes."),
    "groups": ("alltoall", "Plan collectives of several groups of ranks that share a fabric and run at the same time."),
    "simulate": ("show", "Predict the time and the goodput of a collective, without running it."),
    "training": ("show", "Simulate an iteration of data-parallel training, with or without experts."),
    "record-training": ("show", "Record how long the layers of a PyTorch model take, for `chorale training`."),
    "bound": ("synthesize", "Compute how fast a collective can be at best, and which links limit it."),
    "failures": ("synthesize", "Plan a verified schedule for the loss of each compute node and link, one at a time."),
    "run": ("run", "Execute a schedule or program, check every element of every result, and time it."),
    "judge": ("run", "Judge measured times against the bound and the library's own model."),
    "fabric": ("fabric", "Bring topologies up as emulated networks on this machine."),
    "watch": ("fabric", "Watch the links of a fabric; plan, compare and publish a new tuning table when they change."),
    "record": ("record", "Run a job and record which collectives it calls, at which sizes, how often and how long."),
    "tune": ("tune", "Search for the fastest schedule per size and register it."),
    "campaign": ("tune", "List, pause and resume campaigns; check and repair their files."),
    "job": ("record", "Print or install the library that gives MPI programs a tuning table."),
    "replay": ("record", "Replay campaigns on recorded runs, to see how well `chorale tune` searches and decides."),
    "table": ("table", "Write, show, verify, merge and compare tuning tables: the files that CHORALE_TABLE names."),
    "best": ("tune", "Fetch the best schedule that campaigns have registered, and verify it again."),
    "experiment": ("experiment", "Run an experiment row by row, and compare its results with published ones."),
    "bench": ("experiment", "Run benchmarks, compare facts such as counts with expected ones, and keep a history."),
    "ui": ("tune", "Show campaigns, trials and registered schedules in the browser until interrupted."),
    "serve": ("serve", "Serve synthesis, bounds, topologies and campaigns over HTTP, with a web page."),
    "token": ("serve", "Create, list and revoke tokens of the HTTP service; this takes effect immediately."),
    "doctor": ("doctor", "Check what works on this machine and what is missing; exit 3 if no campaign can run."),
}  # fmt: skip
"""Name of a command -> (its module in this package, first paragraph of its help)."""
TASKS: Mapping[str, tuple[str, ...]] = {
    "Start here": ("auto", "demo", "doctor"),
    "Describe a network": ("topology", "find"),
    "Design, prove and compare schedules": (
        "synth", "bound", "alltoall", "groups", "failures", "verify", "show", "compare",
    ),
    "Predict times without running": ("simulate", "training", "record-training"),
    "Make a program for a runtime": ("lower", "lift", "export"),
    "Run and judge": ("run", "judge", "fabric"),
    "Tune, and use the answer in jobs": ("record", "tune", "campaign", "table", "job", "best", "watch", "replay"),
    "Serve and look": ("serve", "token", "ui", "experiment", "bench"),
}  # fmt: skip
"""Heading in `chorale --help` -> names of the commands listed under it, in this order."""
_SETTINGS: Mapping[str, dict[str, Any]] = {"record": {"context_settings": {"ignore_unknown_options": True}}}
"""Name of a command -> its settings for typer: `record` passes unknown options on to the job that it starts."""
GLOBAL_FLAGS = ("--version", "--quiet", "-q", "--verbose", "-v", "--insecure-cluster")


class CommandGroup(TyperGroup):
    """A command group that lists `COMMANDS` without importing them. Only the module of a used command is imported."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for name, (_, summary) in COMMANDS.items():
            self.add_command(TyperCommand(name, help=summary))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for task, names in TASKS.items():
            with formatter.section(task):
                formatter.write_dl([(name, COMMANDS[name][1]) for name in names])

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Import the module of the command in `args`. Return the command's name, the command, and other arguments."""
        name, listed, rest = super().resolve_command(ctx, args)
        return name, None if listed is None else load_command(str(name)), rest


@cache
def load_command(name: str) -> TyperCommand | TyperGroup:
    module = importlib.import_module(f".{COMMANDS[name][0]}", __package__)
    attribute, part = name.replace("-", "_"), CommandLine()
    if group := getattr(module, f"{attribute}_app", None):
        part.add_typer(group, name=name)
    else:
        part.command(name, **_SETTINGS.get(name, {}))(getattr(module, attribute))
    return typer.main.get_group(part).commands[name]  # type: ignore[return-value]


app = typer.Typer(
    rich_markup_mode=None,
    name="chorale",
    cls=CommandGroup,
    help="Design, verify and tune collective communication for a given network.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"chorale {version('chorale-collectives')}")
        raise typer.Exit


@app.callback()
def _global_options(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print errors and results only.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print debug messages, too.")] = False,
    insecure_cluster: Annotated[
        bool, typer.Option("--insecure-cluster", help="Also connect to Ray clusters without authentication.")
    ] = False,
) -> None:
    from chorale.tuner.cli.options import set_verbosity  # noqa: PLC0415 - rich, which `--help` does not need
    from chorale.tuner.files.home import keep_private  # noqa: PLC0415 - NumPy, as above

    keep_private()
    set_verbosity(quiet, verbose)
    if insecure_cluster:
        os.environ[INSECURE_VARIABLE] = "1"


def main(arguments: list[str] | None = None) -> None:
    """Run the command line. Exit with 0 to 4, with 130 if interrupted, or with the exit code of a job that was run."""
    command = sys.argv[1:] if arguments is None else arguments
    hide_passwords()
    try:
        with stopping_in_order():
            # Move global flags to the front, so that `chorale synth … --quiet` works like `chorale --quiet synth …`
            end = command.index("--") if "--" in command else len(command)
            head, tail = command[:end], command[end:]
            app(
                args=[a for a in head if a in GLOBAL_FLAGS] + [a for a in head if a not in GLOBAL_FLAGS] + tail,
                prog_name="chorale",
            )
    except KeyboardInterrupt:
        _fail("interrupted; what was finished is kept", 130)
    except MemoryError as error:
        _fail(f"this does not fit into memory: {str(error) or 'none is left'}; ask for fewer trees, chunks or ranks", 2)
    except (ChoraleError, ModuleNotFoundError, OSError) as error:
        known = missing_extra(error) if isinstance(error, ModuleNotFoundError) else error
        if isinstance(known, OSError) and known.filename is not None:
            way_out = "check its owner, free space and mount, or set CHORALE_HOME to another folder"
            known = Unavailable("cannot use {}", f"{known.filename}: {known.strerror}", way_out)
        elif isinstance(known, OSError) and known.errno == errno.ENOSPC:
            known = Unavailable("cannot write the output: {}", str(known.strerror), "free space on it")
        if not isinstance(known, ChoraleError):
            raise
        if isinstance(known, InvalidInput):
            from chorale.tuner.reports.hints import explained  # noqa: PLC0415 - imports methods and families; only for errors

            known = explained(known)
        shadow = shadow_of(error) or shadow_of(str(known))
        _fail(f"{known}; {shadow}" if shadow else str(known), known.exit_code)


def _fail(message: str, code: int) -> NoReturn:
    print_error(message)
    sys.exit(code)


def command_line() -> TyperGroup:
    """Import all commands and return the complete command line, for the command reference and for tests of the docs."""
    group = typer.main.get_group(app)
    for name in COMMANDS:
        group.add_command(load_command(name))
    return group
