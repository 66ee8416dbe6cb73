"""Arguments and options that several commands share."""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from chorale.runners.api.elements import ELEMENT_TYPES
from chorale.runners.api.units import parse_size
from chorale.synth import InvalidInput, NetworkModel, Options, Topology, parse_collective, target_named
from chorale.synth.collective import STANDARD
from chorale.synth.methods.catalog import METHODS
from chorale.synth.names import name_among
from chorale.synth.topology.grammar import FILE_PREFIX
from chorale.synth.topology.spec import FAMILIES
from chorale.tuner.cli.output import notice
from chorale.tuner.config.building import EXECUTORS
from chorale.tuner.files.home import Home

if TYPE_CHECKING:
    from chorale.tuner.costs.pricing import Pricing

FileName = TypeVar("FileName", str, Path, None)


def file_to_write(path: FileName) -> FileName:
    """Return the name of an output file; InvalidInput, before slow work, if its folder does not exist."""
    if path is not None and not Path(path).parent.is_dir():
        raise InvalidInput("the folder {} does not exist", str(Path(path).parent), "create it first")
    return path


def offer(*names: Iterable[str]) -> Callable[[str], list[str]]:
    """Return what a shell asks for names that begin as the word that is typed."""
    return lambda incomplete: [name for group in names for name in group if name.lower().startswith(incomplete.lower())]


def campaigns(incomplete: str) -> list[str]:
    """Return the campaigns of the data folder that begin as the word that is typed."""
    folder = Home.from_environment().campaigns
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_dir()) if folder.is_dir() else []
    return offer(names)(incomplete)


def collective_name(text: str) -> str:
    """Return the collective that `text` means, `all-reduce` and `AllReduce` too."""
    return parse_collective(text).name.value


def named(names: Iterable[str], parse: Callable[[str], str], what: str, *flags: str, metavar: str = "NAME") -> Any:
    """Return an option whose value is one of `names` as `parse` reads it; `what` it is, for its help."""
    help_text = f"{what}: {', '.join(names)}."
    return typer.Option(*flags, metavar=metavar, parser=parse, autocompletion=offer(names), help=help_text)


def target_name(text: str) -> str:
    """Return the target that `text` means."""
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
    str | None,
    typer.Option(autocompletion=offer(SPECS), help="The topology, for a program that does not name it."),
]
CollectiveFile = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="What a program for a collective of its own must do (chorale-collective/1)."),
]
Shards = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|zipf:S",
        help="Size of the shard of every rank, for allgather and reduce_scatter: .json, .csv or .npy, or a skew.",
    ),
]
Sizes = Annotated[str, typer.Option(help="Buffer sizes: 64KiB, 1M,4M or 4KiB:1GiB:x4.")]
Root = Annotated[int, typer.Option(help="Root rank of broadcast and reduce.")]
ExecutorName = Annotated[
    str, named(EXECUTORS, lambda text: name_among("executor", text, EXECUTORS), "Where to compute")
]
CollectiveName = Annotated[str, named(STANDARD, collective_name, "One of these")]
ElementTypeName = Annotated[
    str,
    named(
        ELEMENT_TYPES,
        lambda text: name_among("element type", text, ELEMENT_TYPES, _ALIASES),
        "Element type",
        metavar="TYPE",
    ),
]
_CAMPAIGN = "Campaign, as its file names it."
CampaignName = Annotated[str, typer.Argument(metavar="NAME", autocompletion=campaigns, help=_CAMPAIGN)]
_METHODS_HELP = "How to make the schedule: bfb, ring, forest or another [auto: the best of all]."
MethodNames = Annotated[
    list[str] | None,
    typer.Argument(metavar="METHOD", autocompletion=offer(METHODS, SPECS), help=_METHODS_HELP),
]
_METHOD_HELP = "Schedule file, or a method: bfb, ring, forest or another [auto if a topology stands here]."
FileOrMethod = Annotated[str, typer.Argument(metavar="FILE|METHOD", autocompletion=offer(METHODS), help=_METHOD_HELP)]
Workers = Annotated[int | None, typer.Option(help="Workers of the executor; default: one per core.")]
_OUTPUT = ("--output", "-o")
ScheduleOutput = Annotated[
    str | None, typer.Option(*_OUTPUT, callback=file_to_write, help="Schedule file to write, .parquet or .json.")
]
ProgramOutput = Annotated[str | None, typer.Option(*_OUTPUT, callback=file_to_write, help="Program file to write.")]
FileOutput = Annotated[Path, typer.Option(*_OUTPUT, callback=file_to_write, metavar="FILE", help="File to write.")]
GpuModelName = Annotated[
    str | None, typer.Option("--model", metavar="NAME", help="GPUs of a matrix, such as H100 [as the file says].")
]
PlotFile = Annotated[
    Path | None, typer.Option(metavar="FILE", callback=file_to_write, help="Draw it as .png, .svg or .pdf.")
]
Address = Annotated[
    str | None, typer.Option("--address", metavar="HOST:PORT", help="Ray cluster to work on; else RAY_ADDRESS.")
]
Protocol = Annotated[str, typer.Option(help="Wire protocol: Simple, LL or LL128.")]
PredictedSize = Annotated[str | None, typer.Option(metavar="BYTES", help="Also predict the time at this buffer size.")]
LinkGbps = Annotated[
    str | None,
    typer.Option(help="Gbit/s of a link of capacity 1 (--link-mbps: Mbit/s); needed where a spec gives no bandwidths."),
]
UNIT_LINK_GBPS = "100"
"""Rate of a link of capacity 1 for commands in which --link-gbps may be left out."""


@dataclass(frozen=True, slots=True)
class Prices:
    """Costs of messages, for commands that simulate.

    Args:
        alpha_us: Microseconds from when a message could start until it does; default: 0.
        link_latency_us: Microseconds for which a bit is on a link; default: 0.1.
        hop_us: Microseconds for which a node handles a packet; default: 0.3.
        calibration: JSON of `run --calibrate --json`, instead of rates and latencies.
    """

    alpha_us: str | None = None
    link_latency_us: str | None = None
    hop_us: str | None = None
    link_gbps: LinkGbps = None
    calibration: Annotated[str | None, typer.Option(metavar="FILE")] = None

    def pricing(self, topology: Topology | None = None) -> "Pricing":
        """Return the pricing; on a `topology` that counts links with a usual rate, which is said, if none is given."""
        from chorale.tuner.costs.pricing import Pricing  # noqa: PLC0415 - half a second, for commands that price

        options = asdict(self)
        calibration = options.pop("calibration")
        if topology is not None and topology.bandwidth_unit == "link" and calibration is None and not self.link_gbps:
            notice(f"links of capacity 1 are taken to have {UNIT_LINK_GBPS} Gbit/s; --link-gbps says another rate")
            options["link_gbps"] = UNIT_LINK_GBPS
        return Pricing.of(options, calibration)


def sized_options(topology: Topology, size: str | None, link_gbps: str | None) -> Options:
    """Return the size for which to choose a method, and the rate of links if bandwidths count links."""
    counts_links = size is not None and topology.bandwidth_unit == "link"
    rate = NetworkModel.of(link_gbps=link_gbps).link_gbps if counts_links else None
    return Options(size_bytes=None if size is None else parse_size(size), link_gbps=rate)
