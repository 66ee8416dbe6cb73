"""Compare the rates of the library and of the best schedule on a fabric with the fabric's proven limit."""

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
from chorale.runners.simulated.library_graph import LibraryName, has_gpus
from chorale.runners.simulated.library_model import (
    IN_SWITCH,
    baseline_label,
    fastest_of_each,
    library_algorithms,
    library_best,
    library_schedule,
    unit_bytes_per_s,
)
from chorale.synth import ChoraleError, Options, ScheduleRequest, SerialExecutor, Topology, VerifiedSchedule
from chorale.synth.bounds.lower_bound import bound_of_ranks, in_network_bound
from chorale.synth.build.build import build_program
from chorale.synth.build.schedules import verified_schedule
from chorale.synth.collective import ALLREDUCE
from chorale.tuner.auto.fabric_discovery import WRITTEN, DiscoveredFabric
from chorale.tuner.auto.programs import (
    MAX_RANKS,
    PROGRAM_SIZES,
    RunnableProgram,
    program_rows,
    runnable_programs,
)
from chorale.tuner.reports.bound import (
    assumption_facts,
    assumption_rows,
    bound_facts,
    bound_label,
    checked,
    expected_facts,
    in_network_note,
)
from chorale.tuner.reports.tables import algbw_text, facts_table, seconds_text

SIZES = (2**16, 2**20)
_BY_BANDWIDTH = Options()


@dataclass(frozen=True, slots=True)
class MeasuredContest:
    """Measured times of several schedules and, if the link rate is known, the shortest time that the links allow."""

    measurement: Measurement
    limit: LinkLimit | None

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each size: each schedule's time in µs, the fastest schedule, and the links' limit."""
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
    """Measure all `schedules` (for one network and collective) alternately on `runner`.

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
    """Return the JSON document of `chorale auto` and the best schedule; measure for about `budget_s` if possible.

    options: link rate, and the size at which the best schedule has the shortest predicted time; without a size, the
      best schedule is the one with the shortest time per byte
    Accelerators can only be measured with their own libraries' runtimes, so published rates are used for them.
    """
    started_s, topology = time.monotonic(), fabric.topology
    best = synthesized_allreduce(topology, "auto", options)
    bound = checked(topology, ALLREDUCE, bound_of_ranks(topology, ALLREDUCE, best.cost.time_per_byte))
    # If a network does not name its GPUs, the tool that described it determines their library
    tools: dict[str, LibraryName] = {"nvidia-smi": "NCCL", "rocm-smi": "RCCL"}
    is_told = fabric.has_accelerators and not has_gpus(topology)
    library = tools.get(fabric.source.partition(" ")[0]) if is_told else None
    algorithms = library_algorithms(topology, ALLREDUCE, library)
    schedules = {best.schedule.method: best}
    if algorithms and (method := library_best(algorithms).method) is not None:
        own = library_schedule(topology, ALLREDUCE, method)
        schedules |= {} if own is None or method in schedules else {method: own}
    acting = in_network_bound(topology, ALLREDUCE)
    in_network = None if acting is None else bound_facts(topology, checked(topology, ALLREDUCE, acting))
    baselines = []
    for each in fastest_of_each(algorithms):  # compare it with the bound that applies: NVLS adds in switches
        acts = acting is not None and each.name in IN_SWITCH
        algbw = each.bytes_per_s / float(unit_bytes_per_s(topology))
        of_bound = algbw * float(acting.value if acting is not None and acts else bound.value)
        rates = {"algbw": algbw, "of_bound": of_bound, "bound": "in_network" if acts else "ranks"}
        baselines.append({**each.document(), "method": each.method, **rates})
    measured, why_not = _measured(fabric, schedules, started_s + budget_s, home)
    programs: list[RunnableProgram] = []
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
        "expected": expected_facts(topology, ALLREDUCE),
        "in_network": in_network,
        "in_network_runs_by": None if in_network is None else in_network_note(topology),
        "programs": [program.document() for program in programs],
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
        **assumption_facts(topology),
    }
    return document, best


def next_commands(fabric: DiscoveredFabric, programs: Sequence[RunnableProgram]) -> list[str]:
    """Return the commands to run next: on GPUs, judge the library, export the best runnable program, and tune it.

    The campaign for GPUs has sizes up to gigabytes, the library's own choice as baseline and a budget of hours.
    """
    spec = fabric.topology.spec if fabric.writer is None else f"file:{WRITTEN}"
    quoted = f"'{spec}'" if set(spec) & set("();") else spec
    first = [] if fabric.writer is None else [fabric.writer]
    keep = f"chorale synth {quoted} --collective allreduce -o auto.parquet"
    if not fabric.has_accelerators:
        return [*first, keep, f"chorale tune examples/quickstart.yaml --set topology={quoted} --set runner.kind=local"]
    running = [program for program in programs if program.refused is None]
    judge = f"chorale judge all_reduce_perf.log --topology {quoted}  # what nccl-tests or rccl-tests print today"
    own = f"chorale tune examples/stock-nccl.yaml --set topology={quoted} --dry-run  # settings, nothing is replaced"
    designed = running[0].command(quoted) if running else keep
    tune = f"chorale tune examples/gpu-cluster-msccl.yaml --set topology={quoted} --dry-run"
    return [*first, judge, own, designed, "chorale export auto.parquet -o job", tune]


def roofline_table(document: Mapping[str, Any]) -> Table:
    """Return the terminal table: the fabric, the proven bound, and each schedule's rate relative to the bound."""
    return facts_table(f"{document['collective']} on {document['fabric']['spec']}", _rows(document))


def _rows(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    fabric, bound, library = document["fabric"], document["bound"], document["library"]
    schedules, unit = document["schedules"], fabric["bandwidth_unit"]

    def algbw(time_per_byte: str) -> str:
        return algbw_text(Fraction(time_per_byte), unit)

    yield "fabric", f"{fabric['nodes']} ranks, {fabric['switches']} switches; {fabric['source']}"
    yield bound_label(bound["certificate"]), algbw(bound["time_per_byte"])
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
        yield baseline_label(library), f"{rate}, {library['of_bound']:.0%} of the bound{which}"
    yield from program_rows(document["programs"], bound["algbw"])
    for row in document["results"]:
        # The measured size is a little larger than the requested one, so that chunks are whole elements
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
    yield from assumption_rows(document)


def synthesized_allreduce(topology: Topology, method: str, options: Options = _BY_BANDWIDTH) -> VerifiedSchedule:
    return verified_schedule(ScheduleRequest(topology, ALLREDUCE, method, options), SerialExecutor())


def _measured(
    fabric: DiscoveredFabric, schedules: Mapping[str, VerifiedSchedule], deadline_s: float, home: Path
) -> tuple[list[MeasuredContest], str | None]:
    """Measure sizes in ascending order until `deadline_s`; return results and, if sizes are missing, the reason."""
    if fabric.has_accelerators:
        return [], "these are published rates; `chorale doctor` shows what the msccl runner needs to measure here"
    if not fabric.is_emulated:
        return [], "this measures one machine only; `chorale run` and `chorale tune` measure a cluster"
    measured: list[MeasuredContest] = []
    for size_bytes in SIZES:
        left_s = deadline_s - time.monotonic()
        if left_s < 1:
            return measured, f"{format_size(size_bytes)}: there was no time left; increase --budget"
        rate = _calibration(measured)  # from the first size, used for all sizes: links are probed once
        try:
            measured.append(contest(schedules, "local", (size_bytes,), home, options=rate, timeout_s=left_s))
        except ChoraleError as error:
            return measured, f"{format_size(size_bytes)}: {error}"
    return measured, None


def _calibration(measured: Sequence[MeasuredContest]) -> dict[str, Any] | None:
    rate = measured[0].measurement.environment.get("link_mbps") if measured else None
    return None if rate is None else {"link_mbps": float(str(rate))}
