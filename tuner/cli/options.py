"""Defines arguments and options that several commands share, and prints the commands' output.

Results go to stdout, as text or as one JSON document; notices, progress and logs go to stderr.
"""

import json
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.logging import RichHandler
from rich.markup import escape
from rich.progress import Progress as ProgressBar

from chorale.runners.api.elements import ELEMENT_TYPES
from chorale.runners.api.units import parse_size
from chorale.synth import InvalidInput, NetworkModel, Options, Topology, parse_collective, target_named
from chorale.synth.collective import STANDARD
from chorale.synth.errors import name_among
from chorale.synth.executor.base import Progress
from chorale.synth.methods.catalog import METHODS
from chorale.synth.redaction import redacted
from chorale.synth.topology.registry import FILE_PREFIX
from chorale.synth.topology.spec import FAMILIES
from chorale.tuner.config.building import EXECUTORS
from chorale.tuner.files.home import Home, require_plot_format
from chorale.tuner.reports.tables import Result, WordConsole

people = WordConsole(stderr=True, markup=False, emoji=False)
"""Console for notices and progress, on stderr. It prints nothing with --quiet."""
results = WordConsole(markup=False, highlight=False, emoji=False)
"""Console for results of commands, on stdout. It also prints with --quiet."""


def emit_json(document: Mapping[str, Any]) -> None:
    typer.echo(redacted(json.dumps(document, indent=2, allow_nan=False)))  # silent if stdout is closed


def print_result(result: Result, as_json: bool) -> None:
    """Print warnings, then the result as JSON or text. Raise the result's failure, or exit with its exit code."""
    for warning in result.document.get("warnings", ()):
        people.print(f"warning: {warning['message']}", soft_wrap=True)
    if as_json:
        emit_json(result.document)
    else:
        for item in result.shown:
            results.print(item)
        if result.next_step is not None:
            notice(f"next: {result.next_step}")
    if result.failure is not None:
        raise result.failure
    if result.exit_code:
        raise typer.Exit(result.exit_code)


def notice(text: str) -> None:
    """Print a line on stderr, without wrapping or colours, unless --quiet is given."""
    people.print(text, soft_wrap=True, highlight=False, markup=False)


def set_verbosity(quiet: bool, verbose: bool) -> None:
    """If `quiet` is set, print and log only errors and results. If `verbose` is set, also log debug messages."""

    def show_warning(message: Warning | str, *_where: object, **_more: object) -> None:
        people.print(f"warning: {redacted(str(message))}", markup=False, highlight=False)

    def hide_secrets(record: logging.LogRecord) -> bool:
        record.msg, record.args = redacted(record.getMessage()), ()  # also in log lines of libraries
        return True

    people.quiet = quiet
    if not verbose:
        warnings.showwarning = show_warning  # without the line of code that caused it
    level = logging.ERROR if quiet else logging.DEBUG if verbose else logging.INFO
    handler = RichHandler(console=people, show_path=False, show_time=verbose, markup=False)
    handler.addFilter(hide_secrets)
    logging.basicConfig(level=logging.WARNING, handlers=[handler], format="%(message)s", force=True)
    logging.getLogger("chorale").setLevel(level)
    # urllib3 would log a paragraph for each retry of an unreachable server; the failure itself is reported anyway.
    logging.getLogger("urllib3").setLevel(logging.DEBUG if verbose else logging.ERROR)


def is_watched() -> bool:
    """Return whether to show progress: only on a terminal and without --quiet."""
    return people.is_terminal and not people.quiet


@contextmanager
def stage_bars() -> Iterator[Callable[[str], Progress | None]]:
    """Yield a function that starts a progress bar with a title and returns its callback (None if bars are off)."""
    if not is_watched():
        yield lambda _title: None
        return

    def begin(title: str) -> Progress:
        row = bar.add_task(escape(title), total=None)
        return lambda done, total: bar.update(row, completed=done, total=total)

    with ProgressBar(console=people, transient=True) as bar:
        yield begin


@contextmanager
def progress_bar(title: str) -> Iterator[Progress | None]:
    """Yield a progress callback that draws a bar on the terminal, or None if progress is not shown."""
    with stage_bars() as begin:
        yield begin(title)


@contextmanager
def status_line(title: str) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows a text after `title` on the terminal, or does nothing if progress is not shown."""
    if not is_watched():
        yield lambda _text: None
        return
    with people.status(escape(title)) as status:
        yield lambda text: status.update(escape(f"{title}: {text}"))


@contextmanager
def stage_display(title: str) -> Iterator[Callable[[str], AbstractContextManager[object]]]:
    """Yield a function that shows a stage's name after `title` and returns a context manager for the stage's work."""
    with status_line(title) as show:

        def observe(stage: str) -> AbstractContextManager[object]:
            show(stage)
            return nullcontext()

        yield observe


if TYPE_CHECKING:
    from chorale.tuner.costs.pricing import Pricing

FileName = TypeVar("FileName", str, Path, None)


def file_to_write(path: FileName) -> FileName:
    """Return the path of an output file. Raises InvalidInput, before slow work starts, if its folder does not exist."""
    if path is not None and not Path(path).parent.is_dir():
        raise InvalidInput("the folder {} does not exist", str(Path(path).parent), "create it first")
    return path


def picture_to_write(path: Path | None) -> Path | None:
    """Return the path of a picture. Raises InvalidInput, before slow work, for an unknown format or missing folder."""
    require_plot_format(path)
    return None if path is None else file_to_write(path)


def offer(*names: Iterable[str]) -> Callable[[str], list[str]]:
    """Return a function for shell completion: it returns those of `names` that begin with the typed word."""
    return lambda incomplete: [name for group in names for name in group if name.lower().startswith(incomplete.lower())]


def campaigns(incomplete: str) -> list[str]:
    """Return the names of campaigns in the data folder that begin with the typed word."""
    folder = Home.from_environment().campaigns
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_dir()) if folder.is_dir() else []
    return offer(names)(incomplete)


def collective_name(text: str) -> str:
    """Return the name of the collective that `text` names in any spelling, such as `all-reduce` or `AllReduce`."""
    return parse_collective(text).name.value


def named(names: Iterable[str], parse: Callable[[str], str], what: str, *flags: str, metavar: str = "NAME") -> Any:
    """Return an option whose value `parse` turns into one of `names`. Its help consists of `what` and the names."""
    help_text = f"{what}: {', '.join(names)}."
    return typer.Option(*flags, metavar=metavar, parser=parse, autocompletion=offer(names), help=help_text)


def target_name(text: str) -> str:
    return target_named(text).name


_ALIASES = {
    "fp32": "float32", "fp64": "float64", "double": "float64", "half": "float16", "fp16": "float16",
    "bf16": "bfloat16", "float": "float32",
}  # fmt: skip

SPECS = (*sorted(entry.example for entry in FAMILIES.values()), FILE_PREFIX)
_SPEC_HELP = "Topology, such as hypercube:3 or a100:2; see `chorale topology list`."
Spec = Annotated[str, typer.Argument(metavar="SPEC", autocompletion=offer(SPECS), help=_SPEC_HELP)]
RunnableFile = Annotated[str, typer.Argument(help="Schedule file (.parquet, .json) or program file (.xml).")]
ReadableFile = Annotated[
    str, typer.Argument(help="Schedule file (.parquet, .json) or program file (.xml, or a plan for MSCCL++ in .json).")
]
ScheduleFile = Annotated[str, typer.Argument(help="Schedule file, .parquet or .json.")]
SpecOfProgram = Annotated[
    str | None, typer.Option(autocompletion=offer(SPECS), help="Topology of a program that does not name it.")
]
CollectiveFile = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="File that describes the program's custom collective (chorale-collective/1)."),
]
Shards = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|zipf:S",
        help="Shard size of each rank, for allgather and reduce_scatter: a .json, .csv or .npy file, or zipf:S.",
    ),
]
Sizes = Annotated[str, typer.Option(help="Buffer sizes: 64KiB, 1M,4M or 4KiB:1GiB:x4.")]
Root = Annotated[int, typer.Option(help="Root rank of broadcast and reduce.")]
ExecutorName = Annotated[
    str, named(EXECUTORS, lambda text: name_among("executor", text, EXECUTORS), "Where to run computations")
]
CollectiveName = Annotated[str, named(STANDARD, collective_name, "Name of the collective")]
ElementTypeName = Annotated[
    str,
    named(
        ELEMENT_TYPES,
        lambda text: name_among("element type", text, ELEMENT_TYPES, _ALIASES),
        "Element type",
        metavar="TYPE",
    ),
]
_CAMPAIGN = "Name of the campaign, as in its file."
CampaignName = Annotated[str, typer.Argument(metavar="NAME", autocompletion=campaigns, help=_CAMPAIGN)]
_METHODS_HELP = "Method: bfb, ring, forest or another [auto: the best of all]."
MethodNames = Annotated[
    list[str] | None, typer.Argument(metavar="METHOD", autocompletion=offer(METHODS, SPECS), help=_METHODS_HELP)
]
_METHOD_HELP = "Schedule file, or a method: bfb, ring, forest or another [auto if this is a topology]."
FileOrMethod = Annotated[str, typer.Argument(metavar="FILE|METHOD", autocompletion=offer(METHODS), help=_METHOD_HELP)]
Workers = Annotated[int | None, typer.Option(help="Workers of the executor; default: one per core.")]
_OUTPUT = ("--output", "-o")
ScheduleOutput = Annotated[
    str | None, typer.Option(*_OUTPUT, callback=file_to_write, help="Schedule file to write, .parquet or .json.")
]
ProgramOutput = Annotated[str | None, typer.Option(*_OUTPUT, callback=file_to_write, help="Program file to write.")]
FileOutput = Annotated[Path, typer.Option(*_OUTPUT, callback=file_to_write, metavar="FILE", help="File to write.")]
GpuModelName = Annotated[
    str | None,
    typer.Option("--model", metavar="NAME", help="GPU model for a GPU matrix, such as H100 [as in the file]."),
]
PlotFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", callback=picture_to_write, help="Draw the result to this .png, .svg or .pdf file."),
]
Address = Annotated[
    str | None, typer.Option("--address", metavar="HOST:PORT", help="Ray cluster to use [RAY_ADDRESS].")
]
Protocol = Annotated[str, typer.Option(help="Wire protocol: Simple, LL or LL128.")]
PredictedSize = Annotated[str | None, typer.Option(metavar="BYTES", help="Also predict the time at this buffer size.")]
LinkGbps = Annotated[
    str | None, typer.Option(help="Gbit/s of a link of capacity 1; needed if the topology has no bandwidths.")
]
UNIT_LINK_GBPS = "100"
"""Default rate of a link of capacity 1 in Gbit/s, for commands that do not require --link-gbps."""


@dataclass(frozen=True, slots=True)
class Prices:
    """Options for latencies, overhead and link rate, for commands that simulate.

    Args:
        alpha_us: Fixed cost of each message before it starts, in microseconds; default: 0.
        link_latency_us: Time that a bit takes over a link, in microseconds; default: 0.1.
        hop_us: Time that a node takes to process a packet, in microseconds; default: 0.3.
        calibration: File with the output of `run --calibrate --json`, used instead of rates and latencies.
    """

    alpha_us: str | None = None
    link_latency_us: str | None = None
    hop_us: str | None = None
    link_gbps: LinkGbps = None
    calibration: Annotated[str | None, typer.Option(metavar="FILE")] = None

    def pricing(self, topology: Topology | None = None) -> "Pricing":
        """Return these costs. If `topology` needs a link rate and none was given, use a default and print a notice."""
        from chorale.tuner.costs.pricing import Pricing  # noqa: PLC0415 - takes half a second; only for simulations

        options = asdict(self)
        calibration = options.pop("calibration")
        if topology is not None and topology.bandwidth_unit == "link" and calibration is None and not self.link_gbps:
            notice(f"assuming {UNIT_LINK_GBPS} Gbit/s for links of capacity 1; --link-gbps sets another rate")
            options["link_gbps"] = UNIT_LINK_GBPS
        return Pricing.of(options, calibration)


def sized_options(topology: Topology, size: str | None, link_gbps: str | None) -> Options:
    """Return method options for a buffer size. The link rate is set only if the topology has no absolute bandwidths."""
    counts_links = size is not None and topology.bandwidth_unit == "link"
    rate = NetworkModel.of(link_gbps=link_gbps).link_gbps if counts_links else None
    return Options(size_bytes=None if size is None else parse_size(size), link_gbps=rate)
