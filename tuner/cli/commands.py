"""Every command by its name, with its one-line help; its module is imported only when the command is used."""

from __future__ import annotations

import gc
import importlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from chorale.tuner.cli.application import CommandLine

Command = TyperCommand | TyperGroup
HELP_FLAGS = ("-h", "--help")
BLAS_THREADS = "OPENBLAS_NUM_THREADS"

COMMANDS: Mapping[str, tuple[str, str]] = {
    "topology": ("topology", "List the families of networks, show one, import one."),
    "find": (
        "find",
        "Find all topologies that are Pareto-efficient in steps and bandwidth time, and the best for a workload.",
    ),
    "synth": ("synthesize", "Design a schedule for a topology, verify it chunk by chunk and prove how good it is."),
    "auto": ("auto", "Find the fabric, prove what an allreduce can reach on it, compare, and say what to type next."),
    "demo": (
        "demo",
        "Tune an allreduce over eight processes that are joined like the corners of a cube, and draw the answer.",
    ),
    "verify": (
        "verify",
        "Replay a schedule, or execute a program, chunk by chunk; exit 0 if it does what its collective demands, "
        "1 if not.",
    ),
    "lower": (
        "lower",
        "Turn a schedule into a program, read it back and check it against the collective before it is written.",
    ),
    "lift": ("lift", "Read a program back and check it against its collective; exit 0 if it is right, 1 if not."),
    "show": ("show", "Show link loads and routes of a schedule, or link loads and the timeline of a program."),
    "export": (
        "export",
        "Write a job folder: programs, environment, launch scripts for mpirun and srun, manifest and checklist.",
    ),
    "compare": (
        "show",
        "Compare exact costs, resources and predicted times, and say at which size one overtakes the other.",
    ),
    "alltoall": (
        "alltoall",
        "Bound the rate at which every rank can send to every other, all at once over any routes.",
    ),
    "groups": (
        "groups",
        "Plan collectives of several groups of ranks at once over a shared fabric, each in its share of every link.",
    ),
    "simulate": ("simulate", "Predict the time and the goodput of a collective, without running it."),
    "training": (
        "training",
        "Simulate an iteration of data-parallel training, with experts where the profile has them.",
    ),
    "record-training": (
        "record_training",
        "Record how long the layers of a PyTorch model take, as a profile for `chorale training`.",
    ),
    "bound": ("bound", "Say how fast a collective can be at best, by which links, and with how many trees per shard."),
    "failures": (
        "failures",
        "Plan a verified schedule for the loss of every compute node and of every link, one at a time.",
    ),
    "run": ("run", "Execute a schedule or program, check every element of every result, and time it."),
    "fabric": ("fabric", "Bring topologies up as emulated networks on this machine."),
    "watch": (
        "watch",
        "Watch the links of a fabric; plan, compare and publish a new tuning table when they change.",
    ),
    "record": (
        "record",
        "Run a job and write down which collectives it calls, at which sizes, how often and how long they take.",
    ),
    "tune": ("tune", "Search for the fastest schedule per size and register it."),
    "campaign": ("campaign", "List, pause and resume campaigns; check and repair their files."),
    "replay": (
        "replay",
        "Replay campaigns on recorded runs: the search and the answers of `chorale tune`, with times from the record.",
    ),
    "table": (
        "table",
        "Write, show, verify, merge and compare tuning tables: the file that a job takes from CHORALE_TABLE.",
    ),
    "best": (
        "best",
        "Fetch the best schedule that campaigns have registered, and verify it again before it is given out.",
    ),
    "experiment": (
        "experiment",
        "Work out the answer to a question part by part, beside what was printed where it comes from.",
    ),
    "bench": (
        "experiment",
        "Run benchmarks, compare counts and certificates with those expected, and keep the history in the data folder.",
    ),
    "ui": ("ui", "Show campaigns, trials and registered schedules in the browser until interrupted."),
    "serve": (
        "serve",
        "Serve synthesis, bounds, topologies and campaigns over HTTP, with a page to watch and compare them.",
    ),
    "token": ("token", "Make, list and revoke tokens of the HTTP service; a running service follows at once."),
    "doctor": (
        "doctor",
        "Say what works on this machine, what is missing and how to get it; exit 3 if a campaign cannot run here.",
    ),
}
"""Name of a command -> the module of this package that registers it, and the first paragraph of its help."""


class CommandGroup(TyperGroup):
    """A group that lists `COMMANDS` without importing them and imports the module of the one that is used.

    Help is plain text: boxes would take three times as long as everything else in showing it.
    """

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for name, (_, summary) in COMMANDS.items():
            self.add_command(TyperCommand(name, help=summary))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands with all of their first paragraphs."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return name, command and remaining arguments."""
        name, listed, rest = super().resolve_command(ctx, args)
        if listed is None:
            return name, None, rest
        return name, _help_page(str(name), rest) or load_command(str(name)), rest


def _help_page(name: str, rest: list[str]) -> Command | None:
    """Return what prints the help of a command, if that is all that is asked for."""
    if rest[-1:] not in ([flag] for flag in HELP_FLAGS):
        return None
    from chorale.tuner.cli.help_pages import help_page  # noqa: PLC0415 - for help only

    return help_page(name, rest[:-1])


@cache
def load_command(name: str) -> Command:
    """Return the command `name`, one of `COMMANDS`, with its module imported."""
    part = CommandLine()
    with _importing():
        module = importlib.import_module(f".{COMMANDS[name][0]}", __package__)
    module.register(part)
    command: Command = typer.main.get_group(part).commands[name]  # type: ignore[assignment]
    return command


def load_all(group: TyperGroup) -> TyperGroup:
    """Load all commands into `group`, as the reference of the command line needs them; return the group."""
    for name in COMMANDS:
        group.add_command(load_command(name))
    return group


@contextmanager
def _importing() -> Iterator[None]:
    """Let numpy start no threads for linear algebra, which no command needs; then look for garbage again.

    `chorale` switches that off when it starts: what imports make stays until the end. Processes that are started later
    see the environment as it was.
    """
    given = os.environ.get(BLAS_THREADS)
    os.environ.setdefault(BLAS_THREADS, "1")
    try:
        yield
    finally:
        if given is None:
            del os.environ[BLAS_THREADS]
        if not gc.isenabled():
            gc.freeze()
            gc.enable()
