"""Find the fabric of this machine or cluster, and compare the library and the best schedule with the proven limit."""

import math
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from rich.table import Table

from chorale.runners import Measurement, RunRequest, runner_config
from chorale.runners.api.units import format_size
from chorale.runners.measurement.driver import LinkLimit, link_limit, measure_on
from chorale.runners.process_launch.slurm import gpus_per_machine
from chorale.runners.simulated import library_model as models
from chorale.runners.simulated.library_graph import LibraryName, has_gpus
from chorale.synth import ChoraleError, LoweringOptions, NetworkModel, Options, ScheduleRequest
from chorale.synth.bounds.lower_bound import bound_of_ranks, in_network_bound
from chorale.synth.build.build import build_program, verified_schedule
from chorale.synth.collective import ALLREDUCE
from chorale.synth.lowering.lower import with_default_channels
from chorale.synth.processors import core_count
from chorale.synth.topology.formats.files import from_bytes
from chorale.synth.topology.formats.gpu_matrices import read_gpu_matrix
from chorale.synth.topology.formats.machine_network import BoxNetwork, boxes_topology
from chorale.synth.topology.topology import Topology
from chorale.synth.verify.verified import VerifiedSchedule
from chorale.tuner.costs.pricing import simulate_program, usual_buffer_bytes
from chorale.tuner.files.machine_files import MachineOptions, read_network
from chorale.tuner.files.schedule_files import load_topology
from chorale.tuner.reports import bound as bounds
from chorale.tuner.reports.synthesis import program_facts
from chorale.tuner.reports.tables import algbw_text, facts_table, seconds_text

EMULATED = "hypercube:3"
"""Spec of the emulated network. It runs on two cores, and each rank has enough links that a ring is not optimal."""

WRITTEN = "machine.json"
_PATIENCE_S = 20.0
SIZES = (2**16, 2**20)
_BY_BANDWIDTH = Options()


@dataclass(frozen=True, slots=True)
class DiscoveredFabric:
    """The network that `chorale auto` examines, and how it was found.

    source: where the network comes from, in words
    has_accelerators: whether its ranks are GPUs
    is_emulated: whether its ranks are processes on this machine, connected by links with limited rates
    skipped: sources that were tried without success, each with the reason
    writer: command that writes the network to the file `WRITTEN`; None if a spec describes the network
    """

    topology: Topology
    source: str
    has_accelerators: bool = False
    is_emulated: bool = False
    skipped: tuple[str, ...] = ()
    writer: str | None = None


def discover(spec: str | None, dump: str | None, model: str | None = None) -> DiscoveredFabric:
    """Return the fabric that `spec` or the file `dump` describes; without either, find that of this node or cluster.

    model: model of the GPUs, if the file contains only the matrix of their connections

    Raises InvalidInput if the spec or the dump is not valid.
    """
    if spec is not None:
        network = load_topology(spec)
        return DiscoveredFabric(network, f"the spec {spec}", has_gpus(network))
    if dump is not None:
        network = read_network(dump, MachineOptions(model=model)).topology
        writer = None if model is None else f"chorale topology import {dump} --model {model} -o {WRITTEN}"
        return DiscoveredFabric(network, f"the file {dump}", has_accelerators=True, writer=writer)
    if (named := os.environ.get("NCCL_TOPO_DUMP_FILE")) and Path(named).is_file():
        return DiscoveredFabric(load_topology(f"file:{named}"), f"NCCL's dump {named}", has_accelerators=True)
    tools: dict[str, tuple[list[str], bool]] = {  # command, and whether it describes GPUs
        "nvidia-smi": (["topo", "-m"], True),
        "rocm-smi": (["--showtopo", "--showproductname"], True),
        "ibnetdiscover": ([], False),
    }
    skipped: list[str] = []
    for name, (arguments, is_gpu) in tools.items():
        if not shutil.which(name):
            continue
        try:
            text = _output([name, *arguments])
            if name == "nvidia-smi":  # its list of GPUs has their names, which determine the link rates
                text = f"{_output([name, '-L'])}\n{text}"
            read = (
                boxes_topology(read_gpu_matrix(text), BoxNetwork(), name) if is_gpu else from_bytes(text.encode(), name)
            )
            source, writer = " ".join([name, *arguments]), f"chorale auto -o {WRITTEN}"
            return DiscoveredFabric(read, source, is_gpu, skipped=tuple(skipped), writer=writer)
        except ChoraleError as error:
            skipped.append(f"{name}: {error.value}")
        except (OSError, subprocess.SubprocessError) as error:
            skipped.append(f"{name}: {error}")
    cores = core_count()
    words = f"no accelerators found: an emulated {EMULATED} on {cores} cores of this machine"
    return DiscoveredFabric(load_topology(EMULATED), words, is_emulated=True, skipped=tuple(skipped))


def _output(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S, check=True)  # noqa: S603 - a fixed command
    return done.stdout


GPU_TARGET = "msccl-xml"
PROGRAM_SIZES = (2**20, 2**24, 2**28)
CANDIDATES: tuple[tuple[str, int | None], ...] = (
    ("forest", 1), ("forest", 2), ("ring", None), ("rabenseifner", None), ("swing", None),
)  # fmt: skip
"""Pairs (method, trees per root) to try in addition to `auto`. Fewer trees need fewer thread blocks and steps."""
MAX_RANKS = 64
"""Maximum number of ranks for programs. With more, lowering and simulating a program would take minutes."""


def runnable_programs(
    topology: Topology, best: VerifiedSchedule, sizes_bytes: Sequence[int], deadline_s: float
) -> list[dict[str, Any]]:
    """Return programs for `best` and for schedules that need fewer resources, sorted by mean rate, fastest first.

    Schedules are lowered to `GPU_TARGET`, and the programs are timed with the flow model. Each program is a JSON
    document: the method, the requested trees per root `k` (None for the optimum), the resources, and GB/s at each
    size. Programs that exceed a limit of the target come last, with the reason. After `deadline_s` (monotonic clock),
    no further program is tried.
    """
    found, seen = [_program(topology, best, None, sizes_bytes)], {best.schedule.id}
    for method, k in CANDIDATES:
        if time.monotonic() > deadline_s:
            break
        try:
            verified = synthesized_allreduce(topology, method, Options(k=k))
        except ChoraleError:  # the method does not support the network
            continue
        if verified.schedule.id not in seen:
            seen.add(verified.schedule.id)
            found.append(_program(topology, verified, k, sizes_bytes))

    def slowness(program: dict[str, Any]) -> float:
        rates = [row["algbw_gb_per_s"] for row in program["predicted"]]
        return -math.prod(rates) if rates else 0.0

    return sorted(found, key=slowness)


def _program(
    topology: Topology, verified: VerifiedSchedule, k: int | None, sizes_bytes: Sequence[int]
) -> dict[str, Any]:
    schedule, rate = verified.schedule, float(1 / verified.cost.time_per_byte)
    facts: dict[str, Any] = {"method": schedule.method, "k": k, "planned_algbw": rate, "target": GPU_TARGET}
    try:
        options = with_default_channels(verified, LoweringOptions(GPU_TARGET))
        program = build_program(verified, options).program
        model, buffer_bytes = NetworkModel.usual(topology), usual_buffer_bytes(program)
        times_s = {size: simulate_program(program, topology, model, size, buffer_bytes).end_s for size in sizes_bytes}
    except ChoraleError as error:
        return facts | {"channels": None, "predicted": [], "refused": error.problem}
    rates = [{"size_bytes": size, "algbw_gb_per_s": size / time_s / 1e9} for size, time_s in times_s.items()]
    resources = program_facts(program)["resources"]
    return facts | {"channels": options.channels, **resources, "predicted": rates, "refused": None}


def program_rows(programs: Sequence[dict[str, Any]], bound_algbw: float) -> Iterator[tuple[str, str]]:
    """Yield rows (title, text) about the fastest program at the smallest size and the fastest at the largest size.

    The text also gives the program's rate as a fraction of the bound. If the target refuses some programs, another row
    says why it refuses the first of them.
    """
    running = [program for program in programs if program["refused"] is None]
    sizes = list(enumerate(running[0]["predicted"])) if running else []
    for index, row in [*sizes[:1], *sizes[1:][-1:]]:
        fastest = max(running, key=lambda program: program["predicted"][index]["algbw_gb_per_s"])
        rate, k = fastest["predicted"][index]["algbw_gb_per_s"], fastest["k"]
        name = fastest["method"] + ("" if k is None else f" with k = {k}")
        channels = f"{fastest['channels']} channel{'s' if fastest['channels'] > 1 else ''}"
        used = f"{channels}, {fastest['threadblocks_max']} thread blocks; predicted"
        text = f"{name}: {rate:.4g} GB/s, {rate / bound_algbw:.0%} of the bound ({used})"
        yield f"program at {format_size(row['size_bytes'])}", text
    refused = [program for program in programs if program["refused"] is not None]
    if refused:
        more = f" (and {len(refused) - 1} other schedules)" if len(refused) > 1 else ""
        yield f"no program ({refused[0]['method']})", f"{GPU_TARGET} refuses it: {refused[0]['refused']}{more}"


@dataclass(frozen=True, slots=True)
class MeasuredContest:
    """Measured times of several schedules, and the limit that the links set, None if the link rates are not known."""

    measurement: Measurement
    limit: LinkLimit | None

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each size: each schedule's time (µs), the fastest schedule, and the limit of the links."""
        rows = []
        names = list(self.measurement.results)
        for index, first in enumerate(self.measurement.results[names[0]]):
            times_us = {name: self.measurement.results[name][index].median_s * 1e6 for name in names}
            least_us = None if self.limit is None else self.limit.least_s(first.size_bytes) * 1e6
            best = min(times_us, key=times_us.__getitem__)
            rows.append({"size_bytes": first.size_bytes, "times_us": times_us, "best": best, "bound_us": least_us})
        return rows


def contest(
    schedules: Mapping[str, VerifiedSchedule],
    runner: str,
    sizes_bytes: Sequence[int],
    home: Path,
    *,
    options: Mapping[str, Any] | None = None,
    repeats: int = 5,
    timeout_s: float = 60.0,
) -> MeasuredContest:
    """Measure all `schedules` alternately on `runner`; they must be for the same network and collective.

    Raises CheckFailed, with the reason, if nothing was measured, and the runner's own error if it is not available.
    """
    config = runner_config(runner, options)
    programs = {name: build_program(schedule, config.lowering()).program for name, schedule in schedules.items()}
    schedule = next(iter(schedules.values())).schedule
    request = RunRequest(schedule.topology, programs, tuple(sizes_bytes), repeats, 1, timeout_s, "float32", 0)
    outcome = measure_on(config, home, request)
    return MeasuredContest(outcome, link_limit(schedule.topology, schedule.collective, outcome.environment))


def roofline(
    fabric: DiscoveredFabric, budget_s: float, home: Path, options: Options = _BY_BANDWIDTH
) -> tuple[dict[str, Any], VerifiedSchedule]:
    """Return the JSON document of `chorale auto` and the best schedule.

    On emulated networks, schedules are measured for about `budget_s`. GPUs can only be measured with the runtimes of
    their own libraries. For them, nothing is measured, and published rates are used.

    options: link rate and buffer size. The best schedule has the shortest predicted time at this size or, without a
             size, the shortest time per byte
    """
    started_s, topology = time.monotonic(), fabric.topology
    best = synthesized_allreduce(topology, "auto", options)
    bound = bounds.checked(topology, ALLREDUCE, bound_of_ranks(topology, ALLREDUCE, best.cost.time_per_byte))
    # If a network does not name its GPUs, the tool that described it determines their library
    tools: dict[str, LibraryName] = {"nvidia-smi": "NCCL", "rocm-smi": "RCCL"}
    is_told = fabric.has_accelerators and not has_gpus(topology)
    library = tools.get(fabric.source.partition(" ")[0]) if is_told else None
    algorithms = models.library_algorithms(topology, ALLREDUCE, library)
    schedules = {best.schedule.method: best}
    if algorithms and (method := models.library_best(algorithms).method) is not None:
        own = models.library_schedule(topology, ALLREDUCE, method)
        schedules |= {} if own is None or method in schedules else {method: own}
    acting = in_network_bound(topology, ALLREDUCE)
    in_network = None if acting is None else bounds.bound_facts(topology, bounds.checked(topology, ALLREDUCE, acting))
    baselines = []
    for each in models.fastest_of_each(algorithms):  # NVLS adds in switches, so the bound with switches applies to it
        acts = acting is not None and each.name in models.IN_SWITCH
        algbw = each.bytes_per_s / float(models.unit_bytes_per_s(topology))
        of_bound = algbw * float(acting.value if acting is not None and acts else bound.value)
        rates = {"algbw": algbw, "of_bound": of_bound, "bound": "in_network" if acts else "ranks"}
        baselines.append({**each.document(), "method": each.method, **rates})
    measured, why_not = _measured(fabric, schedules, started_s + budget_s, home)
    programs: list[dict[str, Any]] = []
    if fabric.has_accelerators and topology.compute_count <= MAX_RANKS and topology.bandwidth_unit != "link":
        sizes = PROGRAM_SIZES if options.size_bytes is None else (options.size_bytes,)
        programs = runnable_programs(topology, best, sizes, started_s + budget_s / 2)
    document = {
        "fabric": {
            "spec": topology.spec,
            "source": fabric.source,
            "nodes": topology.compute_count,
            "switches": topology.switch_count,
            "links": len(topology.links),
            "bandwidth_unit": topology.bandwidth_unit,
            "id": topology.id,
            "emulated": fabric.is_emulated,
            "skipped": list(fabric.skipped),
        },
        "collective": ALLREDUCE.name.value,
        "bound": {
            "time_per_byte": str(bound.value),
            "algbw": float(1 / bound.value),
            "certificate": dict(bound.to_json(topology)),
        },
        "expected": bounds.expected_facts(topology, ALLREDUCE),
        "in_network": in_network,
        "in_network_runs_by": None if in_network is None else bounds.in_network_note(topology),
        "programs": programs,
        "schedules": {
            name: {
                "time_per_byte": str(each.cost.time_per_byte),
                "algbw": float(1 / each.cost.time_per_byte),
                "of_bound": float(bound.value / each.cost.time_per_byte),
                "steps": each.cost.steps,
            }
            for name, each in schedules.items()
        },
        "best": {
            "method": best.schedule.method,
            "gap": str(best.cost.time_per_byte / bound.value - 1),
            "id": best.schedule.id,
        },
        "chosen_by": "bandwidth" if options.size_bytes is None else "time",
        "library": baselines[0] if baselines else None,
        "baselines": baselines,
        "calibration": _calibration(measured),
        "results": [row for contest_at_size in measured for row in contest_at_size.rows()],
        "not_measured": why_not,
        "next": next_commands(fabric, programs),
        "seconds": time.monotonic() - started_s,
        **bounds.assumption_facts(topology),
    }
    return document, best


def next_commands(fabric: DiscoveredFabric, programs: Sequence[dict[str, Any]]) -> list[str]:
    """Return the commands to run next. On GPUs, they judge and tune the library, export a program, and tune programs.

    The campaign for GPUs has sizes up to gigabytes, the library's own choice as baseline and a budget of hours.
    """
    spec = fabric.topology.spec if fabric.writer is None else f"file:{WRITTEN}"
    quoted = f"'{spec}'" if set(spec) & set("();") else spec
    first = [] if fabric.writer is None else [fabric.writer]
    keep = f"chorale synth {quoted} --collective allreduce -o auto.parquet"
    if not fabric.has_accelerators:
        return [*first, keep, f"chorale tune examples/quickstart.yaml --set topology={quoted} --set runner.kind=local"]
    running = [program for program in programs if program["refused"] is None]
    judge = f"chorale judge all_reduce_perf.log --topology {quoted}  # output of nccl-tests or rccl-tests"
    ranks = fabric.topology.compute_count
    several = "" if (gpus_per_machine(fabric.topology) or ranks) == ranks else " --set runner.launcher=srun"
    tune_own = f"chorale tune examples/stock-nccl.yaml --set topology={quoted}{several} --dry-run"
    own = f"{tune_own}  # tunes NCCL's own settings"
    designed = keep
    if running:
        method, k = running[0]["method"], running[0]["k"]
        trees = "" if k is None else f" --k {k}"
        designed = f"chorale synth {method} {quoted} --collective allreduce{trees} -o auto.parquet"
    tune = f"chorale tune examples/gpu-cluster-msccl.yaml --set topology={quoted} --dry-run"
    return [*first, judge, own, designed, "chorale export auto.parquet -o job", tune]


def roofline_table(document: Mapping[str, Any]) -> Table:
    return facts_table(f"{document['collective']} on {document['fabric']['spec']}", _rows(document))


def _rows(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    fabric, bound, library = document["fabric"], document["bound"], document["library"]
    schedules, unit = document["schedules"], fabric["bandwidth_unit"]

    def algbw(time_per_byte: str) -> str:
        return algbw_text(Fraction(time_per_byte), unit)

    yield "fabric", f"{fabric['nodes']} ranks, {fabric['switches']} switches; {fabric['source']}"
    yield bounds.bound_label(bound["certificate"]), algbw(bound["time_per_byte"])
    if document["expected"] is not None:
        yield "expected from the library", algbw(document["expected"]["time_per_byte"])
    if document["in_network"] is not None:
        yield "with switches that add", algbw(document["in_network"]["time_per_byte"])
        yield "run by", document["in_network_runs_by"]
    for name, costs in schedules.items():
        if library is None or name != library["method"] or len(schedules) == 1:
            rate = f"{algbw(costs['time_per_byte'])}, {costs['of_bound']:.0%} of the bound"
            yield f"schedule ({name})", f"{rate}{', before it is lowered to a program' if document['programs'] else ''}"
    if library is not None:
        which = " with switches" if library["bound"] == "in_network" else ""
        rate = algbw(str(Fraction(1 / library["algbw"])))
        yield models.baseline_label(library), f"{rate}, {library['of_bound']:.0%} of the bound{which}"
    yield from program_rows(document["programs"], bound["algbw"])
    for row in document["results"]:
        # The measured size may be a little larger than the requested one, because chunks consist of whole elements
        about = max((size for size in SIZES if size <= row["size_bytes"]), default=row["size_bytes"])
        times = []
        for name, time_us in row["times_us"].items():
            of_links = "" if row["bound_us"] is None else f" ({row['bound_us'] / time_us:.0%} of what the links allow)"
            times.append(f"{name} {seconds_text(time_us / 1e6)}{of_links}")
        yield f"measured at {format_size(about)}", ", ".join(times)
    if document["calibration"] is not None:
        yield "links", f"{document['calibration']['link_mbps']:g} Mbit/s each, as calibrated"
    if document["not_measured"]:
        yield "not measured", document["not_measured"]
    yield from bounds.assumption_rows(document)


def synthesized_allreduce(topology: Topology, method: str, options: Options = _BY_BANDWIDTH) -> VerifiedSchedule:
    return verified_schedule(ScheduleRequest(topology, ALLREDUCE, method, options))


def _measured(
    fabric: DiscoveredFabric, schedules: Mapping[str, VerifiedSchedule], deadline_s: float, home: Path
) -> tuple[list[MeasuredContest], str | None]:
    """Measure `schedules` at ascending sizes until `deadline_s`. Return the results, and why any sizes are missing."""
    if fabric.has_accelerators:
        return [], "these are published rates; `chorale doctor` shows what the msccl runner needs to measure here"
    if not fabric.is_emulated:
        return [], "this measures one machine only; `chorale run` and `chorale tune` measure a cluster"
    measured: list[MeasuredContest] = []
    for size_bytes in SIZES:
        left_s = deadline_s - time.monotonic()
        if left_s < 1:
            return measured, f"{format_size(size_bytes)}: there was no time left; increase --budget"
        rate = _calibration(measured)  # links are probed only once: the rate at the first size is used for all sizes
        try:
            measured.append(contest(schedules, "local", (size_bytes,), home, options=rate, timeout_s=left_s))
        except ChoraleError as error:
            return measured, f"{format_size(size_bytes)}: {error}"
    return measured, None


def _calibration(measured: Sequence[MeasuredContest]) -> dict[str, Any] | None:
    rate = measured[0].measurement.environment.get("link_mbps") if measured else None
    return None if rate is None else {"link_mbps": float(str(rate))}
