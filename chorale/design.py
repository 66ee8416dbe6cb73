"""Find networks; design, verify, lower, simulate and run schedules from Python.

Networks and sizes can be given in several forms. Results have methods for the next steps, such as `lower` and `run`,
and notebooks show them as tables. Errors name Python arguments instead of command-line flags.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import cached_property, wraps
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeAlias, TypeVar, cast, get_args, get_type_hints

import networkx as nx
from pydantic import ConfigDict, TypeAdapter, ValidationError

from chorale.job.files import read_file
from chorale.runners import Measurement, RunRequest, runner_config
from chorale.runners.api.units import format_size, parse_size, parse_sizes
from chorale.runners.measurement.driver import measure_on
from chorale.synth import ChoraleError, InvalidInput, LoweringOptions, Options, ScheduleRequest, parse_collective
from chorale.synth.bounds.lower_bound import bound_of_schedule, lower_bound
from chorale.synth.bounds.optimum import Bound
from chorale.synth.build.build import LoweredProgram, build_program, verified_schedule
from chorale.synth.errors import name_among
from chorale.synth.executor.base import Executor, Progress, SerialExecutor
from chorale.synth.finder.cayley_search import search_bases
from chorale.synth.finder.find import FinderQuery, Goal, find as find_topologies
from chorale.synth.methods.catalog import method_named
from chorale.synth.methods.traffic.certificate import PLAN_CERTIFICATES, proven_time_per_byte
from chorale.synth.schedule.schedule import AnySchedule
from chorale.synth.schedule.traffic import traffic_of
from chorale.synth.simulation.simulate import as_fidelity
from chorale.synth.targets.registry import is_in_place_by_default, target_named
from chorale.synth.topology.formats.networkx_graph import from_networkx
from chorale.synth.topology.registry import FILE_PREFIX, MODEL_MARK
from chorale.synth.topology.topology import Topology
from chorale.synth.verify.verified import VerifiedSchedule
from chorale.synth.verify.verify import verify as verify_schedule
from chorale.tuner import Home, load_schedule, load_topology, plots, save_schedule
from chorale.tuner.costs.pricing import Pricing, goodput_row, simulate_program, usual_buffer_bytes
from chorale.tuner.files.home import write_file
from chorale.tuner.plots.layout import Picture
from chorale.tuner.reports.bound import checked, gap_verdict
from chorale.tuner.reports.finder import find_document
from chorale.tuner.reports.hints import explained, for_python
from chorale.tuner.reports.judge import MAX_BYTES, Judgement, judge as judge_results
from chorale.tuner.reports.tables import algbw_text, seconds_text, short_id, time_per_byte_text

if TYPE_CHECKING:
    from chorale.campaigns import TuningResult

Given = ParamSpec("Given")
Returned = TypeVar("Returned")

Network: TypeAlias = "str | Topology | nx.Graph[Any]"
"""A topology spec such as `torus:4x4` or `file:fabric.json`, a topology, or a NetworkX graph."""

Sizes: TypeAlias = str | int | Sequence[str | int]
"""Buffer sizes in bytes: a number, text such as `1MiB`, `64KiB,1M` or `4KiB:1GiB:x4`, or a sequence of these."""
SomeSchedule: TypeAlias = "VerifiedSchedule | AnySchedule | str | Path"
"""A schedule argument: a result of `synthesize` or `verify`, an unverified schedule, or a file name."""
_ANY_CLASS = ConfigDict(arbitrary_types_allowed=True)
_MAX_SHOWN_LINKS = 5_000
"""Networks with more links are shown as text in notebooks, because drawing them takes seconds."""


def in_words_of_arguments(function: Callable[Given, Returned]) -> Callable[Given, Returned]:
    """Wrap `function` so that its errors name Python arguments instead of command-line flags."""

    @wraps(function)
    def called(*args: Given.args, **named: Given.kwargs) -> Returned:
        try:
            return function(*args, **named)
        except ChoraleError as error:
            for_python(explained(error))
            raise

    return called


def network_of(network: Network) -> Topology:
    """Return the checked topology for a spec, a NetworkX graph or a topology. Raises InvalidInput for anything else."""
    if isinstance(network, Topology):
        return network
    given: object = network  # callers without a type checker may pass anything
    if not isinstance(given, str | nx.Graph):
        way_out = "give a spec such as 'torus:4x4', a topology or a NetworkX graph"
        raise InvalidInput("cannot make a network from {}", network, way_out)
    return load_topology(network) if isinstance(network, str) else from_networkx(network)


def size_list(sizes: Sizes) -> tuple[int, ...]:
    """Convert `sizes` to a tuple of sizes in bytes. Raises InvalidInput unless all sizes are positive."""
    if isinstance(sizes, str | int):
        return parse_sizes(str(sizes))
    return tuple(size for each in sizes for size in size_list(each))


def options_of(kind: type[Any], rule: str, **options: Any) -> Any:
    """Return an instance of the dataclass `kind` with the fields `options`.

    Raises InvalidInput if a name is not a field (`rule` is the text of this error), or if a value has the wrong type.
    """
    hints = get_type_hints(kind)
    if unknown := sorted(set(options) - set(hints)):
        raise InvalidInput(rule, ", ".join(unknown), f"choose from {', '.join(hints)}")
    for name, value in options.items():
        try:
            options[name] = TypeAdapter(hints[name], config=_ANY_CLASS).validate_python(value)
        except ValidationError as error:
            wanted = error.errors()[0]["msg"].replace("Input should", f"{name} should", 1)
            raise InvalidInput(wanted, repr(value), "see the help() of this function") from None
    return kind(**options)


class Methods:
    """Base class of classes that extend the result classes of other packages with methods such as `plot` and `run`."""

    @classmethod
    def of(cls, value: Any, **facts: Any) -> Self:
        """Convert `value`, an instance of the base class, to an instance of this class with `facts` as attributes."""
        if isinstance(value, cls):
            return value
        copied = object.__new__(cls)
        for name in {name for base in cls.__mro__ for name in base.__dict__.get("__slots__", ())}:
            object.__setattr__(copied, name, getattr(value, name))
        copied.__dict__.update(facts)
        return copied


class Shown(ABC):
    """A result that notebooks show as a table with the title `_title` and a row for each item in `_texts`."""

    _title = ""

    @abstractmethod
    def _texts(self) -> Mapping[str, str]:
        """Return the rows of the table, as a mapping from name to value."""

    def _repr_html_(self) -> str:
        caption = f"<caption>{escape(self._title)}</caption>" if self._title else ""
        cells = "".join(
            f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in self._texts().items()
        )
        return f"<table>{caption}{cells}</table>"


@in_words_of_arguments
def topology(network: Network, model: str | None = None) -> NetworkTopology:
    """Convert a spec, a NetworkX graph or a topology to a checked topology. Raises InvalidInput for anything else.

    Args:
        network: A spec, a NetworkX graph, a topology, or, if `model` is given, the path of a GPU matrix such as the
            output of `nvidia-smi topo -m`.
        model: GPU model, such as H100, for a GPU matrix that does not name it.

    >>> topology("hypercube:3").compute_count
    8
    """
    if model is not None:
        network = f"{FILE_PREFIX}{str(network).removeprefix(FILE_PREFIX)}{MODEL_MARK}{model}"
    return NetworkTopology.of(network_of(network))


@in_words_of_arguments
def synthesize(
    network: Network,
    collective: str = "allreduce",
    method: str = "auto",
    *,
    root: int = 0,
    executor: Executor | None = None,
    progress: Progress | None = None,
    **parameters: Any,
) -> DesignedSchedule:
    """Return a verified schedule for `collective` on `network`.

    Args:
        network: A topology spec, a topology or a NetworkX graph.
        collective: allgather, reduce_scatter, allreduce, broadcast, reduce or alltoall.
        method: A method listed by `chorale synth --help`; `auto` chooses the schedule with the lowest proven cost.
        root: The root rank; only used for broadcast and reduce.
        executor: Executor for the computation; by default it runs in this process.
        progress: Called with the number of finished tasks and the total number of tasks.
        **parameters: Fields of `chorale.synth.Options`, such as k, chunks, objective, seed or size_bytes.

    Raises:
        InvalidInput: An argument is invalid, or the arguments contradict each other.

    >>> verified = synthesize("torus:4x4", method="bfb")
    >>> verified.cost.steps, str(verified.cost.bandwidth_factor)
    (8, '15/8')
    """
    options = options_of(Options, "every parameter must be an option of a method", **parameters)
    name = method_named(method).name
    request = ScheduleRequest(topology(network), parse_collective(collective, root), name, options)
    return DesignedSchedule.of(verified_schedule(request, executor, progress))


@in_words_of_arguments
def verify(schedule: SomeSchedule) -> DesignedSchedule:
    """Verify a schedule and return it with its proven cost.

    Args:
        schedule: A schedule, a result of `synthesize`, or a file name.

    Raises:
        CheckFailed: The schedule is wrong; the message names the first fault.

    >>> verify(synthesize("ring:4", method="ring").schedule).method
    'ring'
    """
    if isinstance(schedule, VerifiedSchedule):
        schedule = schedule.schedule
    unverified = load_schedule(schedule) if isinstance(schedule, str | Path) else schedule
    return DesignedSchedule.of(verify_schedule(unverified))


def _verified(schedule: SomeSchedule) -> VerifiedSchedule:
    return schedule if isinstance(schedule, VerifiedSchedule) else verify(schedule)


@in_words_of_arguments
def judge(
    results: str | Path, network: Network, collective: str | None = None, link_gbps: str | None = None
) -> Judgement:
    """Compare measured times in a file with bounds and expected times. The result has `.verdict` and `.sizes`.

    Args:
        results: Output file of nccl-tests, rccl-tests, OSU or `chorale run --json`, as text or JSON.
        network: The measured network, as a topology spec, a topology or a NetworkX graph.
        collective: The collective to judge; required if the file contains several or does not name it.
        link_gbps: Link rate in Gbit/s, for networks whose links have no rate.

    Raises:
        InvalidInput: The file contains no results, or they do not match the network.
    """
    content, name = read_file(str(results), MAX_BYTES), Path(results).name
    return judge_results(content, name, network_of(network), collective, link_gbps)


@in_words_of_arguments
def lower(schedule: SomeSchedule, target: str = "msccl-xml", **options: Any) -> CheckedProgram:
    """Lower a schedule to a checked program (`.program`) and its text in the runtime's format (`.text`).

    Args:
        schedule: A schedule, a result of `synthesize`, or a file name.
        target: A program format listed by `chorale lower --help`, such as msccl-xml, mscclpp-json or oneccl-xml.
        **options: Fields of `chorale.synth.LoweringOptions`, such as channels, instances or protocol.

    Raises:
        InvalidInput: An option is unknown or has an invalid value.

    >>> lower(synthesize("ring:4", "allreduce", method="ring"), "msccl-xml").text[:5]
    '<algo'
    """
    verified = _verified(schedule)
    name = target_named(target).name
    options.setdefault("in_place", is_in_place_by_default(verified.schedule.collective, name))
    lowering = options_of(LoweringOptions, "every lowering option must have a known name", target=name, **options)
    return CheckedProgram.of(build_program(verified, lowering), topology=verified.schedule.topology)


@in_words_of_arguments
def simulate(
    schedule: SomeSchedule,
    sizes: Sizes = "1MiB",
    *,
    model: str = "step",
    alpha_us: float | str = 0,
    link_latency_us: float | str | None = None,
    hop_us: float | str | None = None,
    link_gbps: float | str | None = None,
) -> PredictedTimes:
    """Predict the schedule's time at each size. The result maps sizes in bytes to seconds.

    Args:
        schedule: A schedule, a result of `synthesize`, or a file name.
        sizes: Buffer sizes in bytes: a string, a number, or a sequence of strings or numbers.
        model: Simulation model: `step` has barriers between steps; in `flow`, messages share links fairly.
        alpha_us: Fixed overhead per step, in microseconds.
        link_latency_us: Latency of each link, in microseconds; 0.1 unless the topology states latencies.
        hop_us: Latency of each node on a route, in microseconds; 0.3 unless the topology states latencies.
        link_gbps: Rate in Gbit/s of a link with bandwidth 1; required if the topology states no absolute bandwidths.

    >>> times_s = simulate(synthesize("ring:4", method="ring"), "1MiB", link_gbps=100)
    >>> round(times_s[2**20] * 1e6, 2)
    128.23
    """
    verified = _verified(schedule)
    sizes_bytes = size_list(sizes)
    pricing = Pricing.of(
        {"alpha_us": alpha_us, "link_latency_us": link_latency_us, "hop_us": hop_us, "link_gbps": link_gbps}
    )
    times_s = pricing.times_s(traffic_of(verified.schedule), sizes_bytes, as_fidelity(model))
    return PredictedTimes(dict(zip(sizes_bytes, times_s, strict=True)), _name(verified))


@in_words_of_arguments
def run(
    schedule: SomeSchedule,
    sizes: Sizes = "1MiB",
    runner: str = "local",
    *,
    repeats: int = 5,
    dtype: str = "float32",
    timeout_s: float = 300.0,
    seed: int = 0,
    **options: Any,
) -> MeasuredRun:
    """Execute a verified schedule, check every element of every result, and return the measured times.

    Args:
        schedule: A schedule, a result of `synthesize`, or a file name.
        sizes: Buffer sizes in bytes: a string, a number, or a sequence of strings or numbers.
        runner: Kind of runner: local, mpi, oneccl, nccl, device, msccl, simulated or recorded.
        repeats: Number of measured repetitions at each size.
        dtype: Element type, such as float32.
        timeout_s: Seconds after which a run counts as hung.
        seed: Seed for the input data.
        **options: Options of this kind of runner, such as link_mbps; `chorale tune --schema` lists them.

    Raises:
        InvalidInput: An argument is invalid, or the arguments contradict each other.
        CheckFailed: Nothing was measured; the message says why.

    >>> measured = run(synthesize("ring:4", method="ring"), "1MiB", "simulated", link_mbps=1000)
    >>> round(measured.times[2**20] * 1e3, 2)
    12.58
    """
    verified = _verified(schedule)
    config = runner_config(runner, options)
    programs = {"program": build_program(verified, config.lowering()).program}
    request = RunRequest(verified.schedule.topology, programs, size_list(sizes), repeats, 1, timeout_s, dtype, seed)
    return MeasuredRun.of(measure_on(config, Home.from_environment().root, request))


def _name(verified: VerifiedSchedule) -> str:
    schedule = verified.schedule
    return f"{schedule.method} {schedule.collective} on {schedule.topology.spec}"


class NetworkTopology(Methods, Topology):
    """A topology with methods to synthesize, bound, tune and plot. Notebooks show it as a drawing."""

    synthesize = synthesize

    @in_words_of_arguments
    def bound(self, collective: str = "allreduce", root: int = 0) -> Bound:
        """Return the proven lower bound on a collective's time per byte. Separate code has checked the proof."""
        target = parse_collective(collective, root)
        return checked(self, target, lower_bound(self, target))

    def tune(self, collective: str = "allreduce", **options: Any) -> TuningResult:
        """Run a tuning campaign on this network; `chorale.tune` lists the options."""
        from chorale.campaigns import tune  # noqa: PLC0415 - Optuna and MLflow are optional

        return tune(self, collective, **options)

    def plot(self) -> Picture:
        """Return a drawing of the network with link bandwidths and node names."""
        return Picture(lambda path: plots.plot_topology(self, path))

    def _repr_svg_(self) -> str | None:
        return self.plot()._repr_svg_() if len(self.links) <= _MAX_SHOWN_LINKS else None

    def _repr_html_(self) -> str:
        drawing = self._repr_svg_()
        return drawing[drawing.index("<svg") :] if drawing else f"<code>{escape(repr(self))}</code>"


class DesignedSchedule(Methods, Shown, VerifiedSchedule):
    """A verified schedule and its proven bound, with methods to simulate, lower, run, save and plot it."""

    @property
    def method(self) -> str:
        """Name of the synthesis method. If the schedule was requested with `auto`, the method that `auto` chose."""
        return self.schedule.method

    @property
    def topology(self) -> NetworkTopology:
        """The schedule's network."""
        return NetworkTopology.of(self.schedule.topology)

    @property
    def algbw(self) -> float:
        """Vector size divided by bandwidth time, in the unit of the network's bandwidths."""
        return float(1 / self.cost.time_per_byte)

    @cached_property
    def bound(self) -> Bound:
        """Proven lower bound on the time per byte of this collective on this network. Separate code has checked it."""
        schedule = self.schedule
        if schedule.collective.sizes is not None and (time := proven_time_per_byte(schedule.expand())) is not None:
            return Bound(str(schedule.certificate["kind"]), (), time)
        return checked(schedule.topology, schedule.collective, bound_of_schedule(schedule, self.cost.time_per_byte))

    @property
    def gap(self) -> Fraction:
        """Time above the bound, relative to the bound: 0 is optimal, 0.05 means 5 % slower."""
        return self.cost.time_per_byte / self.bound.value - 1

    @property
    def certificate(self) -> Mapping[str, Any]:
        """The bound's certificate, in the form that `chorale.synth.check_certificate` checks."""
        bound = self.bound
        if bound.kind in PLAN_CERTIFICATES:
            return self.schedule.certificate
        return bound.to_json(self.schedule.topology)

    simulate = simulate
    lower = lower
    run = run

    def save(self, path: str | Path) -> Path:
        """Write the schedule to a .parquet or .json file and return the path."""
        save_schedule(self, str(path))
        return Path(path)

    def plot(self, rank: int = 0) -> Picture:
        """Return a drawing of the link loads and of the routes that the data of `rank` takes."""
        schedule = self.schedule.expand()
        return Picture(lambda path: plots.plot_schedule(schedule, rank, path))

    def _texts(self) -> dict[str, str]:
        unit = self.schedule.topology.bandwidth_unit
        verdict = gap_verdict(self.gap, self.certificate)
        return {
            "schedule": _name(self),
            "steps": str(self.cost.steps),
            "time": time_per_byte_text(self.cost.time_per_byte, unit),
            "algbw": f"{algbw_text(self.cost.time_per_byte, unit)}, {verdict}",
            "id": short_id(self.schedule.id),
        }

    def __repr__(self) -> str:
        facts = self._texts()
        return f"<{facts['schedule']}: {facts['steps']} steps, algbw {facts['algbw']}>"


class CheckedProgram(Methods, LoweredProgram):
    """A program that was written in the runtime's format, parsed again, and executed symbolically as a check."""

    topology: Topology

    def save(self, path: str | Path) -> Path:
        """Write the program's text to `path` and return the path."""
        write_file(str(path), self.text.encode())
        return Path(path)

    def plot(self, size: str | int = "16MiB", link_gbps: float | str = 100) -> Picture:
        """Return a plot of a simulation with the flow model: when each rank sends, and how busy the links are.

        link_gbps: rate in Gbit/s of a link with bandwidth 1; only used for networks whose links have no rates
        """
        program, topology = self.program, self.topology
        size_bytes = parse_size(size) if isinstance(size, str) else size
        network = Pricing.usual(link_gbps=link_gbps).network(topology)
        trace = simulate_program(program, topology, network, size_bytes, usual_buffer_bytes(program))
        return Picture(lambda path: plots.plot_program(program, topology, network, size_bytes, trace, path))

    def __repr__(self) -> str:
        program = self.program
        size = f"{len(program.ranks)} ranks, channels: {program.channels}, {len(self.text)} characters"
        return f"<{program.target} {program.collective}: {size}>"

    def _repr_html_(self) -> str:
        return f"<details><summary>{escape(repr(self))}</summary><pre>{escape(self.text[:20_000])}</pre></details>"


class PredictedTimes(Shown, dict[int, float]):
    """Predicted times: maps each size in bytes to a time in seconds."""

    def __init__(self, seconds: Mapping[int, float], title: str) -> None:
        super().__init__(seconds)
        self.title = self._title = title

    def rows(self) -> list[dict[str, float]]:
        """Return a row with size, time and goodput for each size, as in the output of `chorale simulate --json`."""
        return [goodput_row(size, time_s) for size, time_s in self.items()]

    def plot(self) -> Picture:
        """Return a plot of goodput against size."""
        return Picture(lambda path: plots.plot_goodput(self.title, {"predicted": self.rows()}, path))

    def _texts(self) -> dict[str, str]:
        return {format_size(size): seconds_text(time_s) for size, time_s in self.items()}

    def __repr__(self) -> str:
        return f"<{self.title}, predicted: {'; '.join(f'{size} in {text}' for size, text in self._texts().items())}>"


class MeasuredRun(Methods, Shown, Measurement):
    """The measured times of a run. Every element of every result was checked."""

    @property
    def times(self) -> dict[int, float]:
        """Maps each size in bytes to the program's median time in seconds."""
        return {size.size_bytes: size.median_s for size in self.results["program"]}

    @property
    def algbw(self) -> dict[int, float]:
        """Maps each size in bytes to algbw, the size divided by the median time, in GB/s."""
        return {size: size / time_s / 1e9 for size, time_s in self.times.items()}

    def plot(self) -> Picture:
        """Return a plot of goodput against size."""
        rows = [goodput_row(size, time_s) for size, time_s in self.times.items()]
        return Picture(lambda path: plots.plot_goodput(self._title, {"measured": rows}, path))

    @property
    def _title(self) -> str:  # type: ignore[override]  # depends on the runner
        return f"measured by the {self.runner} runner"

    def _texts(self) -> dict[str, str]:
        correct = {True: "right", False: "WRONG", None: "unchecked"}
        return {
            format_size(size.size_bytes): f"{seconds_text(size.median_s)}, "
            f"{size.size_bytes / size.median_s / 1e9:.3g} GB/s, {correct[size.correct]}"
            for size in self.results["program"]
        }

    def __repr__(self) -> str:
        return f"<{self.runner}: {'; '.join(f'{size} in {text}' for size, text in self._texts().items())}>"


@in_words_of_arguments
def find(
    nodes: int,
    degree: int,
    *,
    bidirectional: bool = False,
    bases: str = "all",
    search: int = 16,
    collective: Goal = "allreduce",
    executor: Executor | None = None,
) -> NetworkFrontier:
    """Return the networks that are Pareto-optimal in steps and bandwidth time, sorted by steps.

    Args:
        nodes: Number of nodes, up to 16,384.
        degree: Number of outgoing links of each node, and also of its incoming links.
        bidirectional: Whether every link must have a reverse link.
        bases: The small networks from which larger networks are built: `all`, or `paper` for only those in tables 8 and
            9 of *Efficient Direct-Connect Topologies for Collective Communications*.
        search: Number of random seeds for the search for Cayley digraphs; 0 for no search.
        collective: How to rank networks: `allreduce` (by steps and bandwidth time), `alltoall` (by rate; only the best
            few are returned), or `both`.
        executor: Executor for the computation; by default it runs in this process.

    Raises:
        InvalidInput: No network has these properties.

    >>> [row["spec"] for row in find(8, 3, bidirectional=True, search=0)][:1]
    ['circulant:8,1,4']
    """
    query = FinderQuery(nodes, degree, bidirectional, "paper" if bases == "paper" else "all")
    running = executor or SerialExecutor()
    searched = search_bases(query, search, running, lambda _: None) if bases == "all" else {}
    found = find_topologies(
        query, running, extra_bases=searched, goal=cast(Goal, name_among("collective", collective, get_args(Goal)))
    )
    return NetworkFrontier(find_document(found, None))


class NetworkFrontier(list[Mapping[str, Any]]):
    """Rows of `chorale find --json`, one per network, with `spec`, `method`, `steps` and `bandwidth_factor`."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        super().__init__(document["frontier"])
        self.document = document

    def topology(self, row: int = 0) -> NetworkTopology:
        """Return the network in row number `row`, counted from 0."""
        return topology(self[row]["spec"])

    def plot(self, row: int = 0) -> Picture:
        """Return a drawing of the network in row number `row`, counted from 0."""
        return self.topology(row).plot()

    def __repr__(self) -> str:
        rows = "; ".join(f"{row['spec']}: {row['steps']} steps, {row['bandwidth_factor']}" for row in self)
        return f"<{self.document['nodes']} nodes of degree {self.document['degree']}: {rows}>"

    def _repr_html_(self) -> str:
        names = ("spec", "method", "steps", "bandwidth_factor", "diameter")
        head = "".join(f"<th>{name.replace('_', ' ')}</th>" for name in names)
        rows = "".join(
            "<tr>" + "".join(f"<td>{escape(str(row[name]))}</td>" for name in names) + "</tr>" for row in self
        )
        return f"<table><tr>{head}</tr>{rows}</table>"
