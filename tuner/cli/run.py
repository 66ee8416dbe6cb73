"""Defines `chorale run` (execute, check and time a program) and `judge` (assess measured times)."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer
from rich.table import Table

from chorale.job.files import read_file
from chorale.runners import RUNNERS, parse_sizes, runner_config
from chorale.runners.api import base
from chorale.runners.api.base import StepSpan
from chorale.runners.api.registry import runner_named
from chorale.runners.api.units import format_size, format_us
from chorale.runners.local.config import LocalConfig
from chorale.runners.measurement.driver import LinkLimit, believable, link_limit, median_interval, ratio_interval
from chorale.runners.measurement.machine import exclusive, machine_lock
from chorale.runners.simulated.calibration import Calibration, calibrate, observations_of
from chorale.runners.workers.campaign_worker import ALONE_PATIENCE_S
from chorale.synth import InvalidInput, Program, Topology, Unavailable
from chorale.synth.programs.memory import collective_of_ranks, rank_count
from chorale.synth.programs.program import AnyProgram
from chorale.tuner import Home, load_topology
from chorale.tuner.cli import options as opt
from chorale.tuner.cli.options import people
from chorale.tuner.cli.process import print_error, stop_before_the_job_ends
from chorale.tuner.cli.slurm import SlurmOptions, job_name, run_as_job
from chorale.tuner.costs.pricing import calibration_programs
from chorale.tuner.files.collective_files import load_collective
from chorale.tuner.files.home import write_file
from chorale.tuner.files.program_files import Runnable, is_program_file, load_runnable
from chorale.tuner.reports.judge import MAX_BYTES, judge as judge_results
from chorale.tuner.reports.tables import Columns, Result, facts_table, rows_table, speed_text


@dataclass(frozen=True, slots=True)
class RunnerChoices:
    """Options that say where a runner runs, and its other options.

    Args:
        link_mbps: Mbit/s of a link; default: that of the runner.
        fabric: Name of the emulated network to run on.
        where: Run on a fabric, a cluster, or loopback; default: the first of these that is available.
        hosts: Hosts of a cluster for MPI, a comma list or @FILE; default: those of this job.
        options: Other option of the runner; may be repeated.
    """

    link_mbps: float | None = None
    fabric: str | None = None
    where: str | None = None
    hosts: str | None = None
    options: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE")] = None

    def options_of_runner(self) -> dict[str, Any]:
        """Return all options of the runner: those from --set, overridden by flags such as --fabric that were given."""
        found: dict[str, Any] = {}
        for text in self.options or []:
            key, equals, value = text.partition("=")
            if not (key and equals):
                raise InvalidInput(
                    "--set must be of the form KEY=VALUE", text, "write, for example, --set buffer_bytes=1MiB"
                )
            found[key] = value
        flags = {"link_mbps": self.link_mbps, "fabric": self.fabric, "where": self.where, "hosts": self.hosts}
        return found | {name: value for name, value in flags.items() if value is not None}


def run(
    *,
    file: opt.RunnableFile,
    runner: Annotated[str, opt.named(RUNNERS, runner_named, "Runner that executes it")] = "local",
    sizes: opt.Sizes = "64KiB,1MiB",
    spec: str | None = None,
    collective_file: opt.CollectiveFile = None,
    choices: RunnerChoices,
    repeats: Annotated[int, typer.Option(min=1)] = 5,
    reference: str | None = None,
    dtype: opt.ElementTypeName = "float32",
    timeout: Annotated[float, typer.Option(min=0.1)] = 300.0,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    wants_calibration: Annotated[bool, typer.Option("--calibrate")] = False,
    trace: Annotated[Path | None, typer.Option(callback=opt.file_to_write)] = None,
    job: SlurmOptions,
) -> Result | None:
    """Execute a schedule or program, check every element of every result, and time it.

    Args:
        spec: Topology of the program, if it names none; default for the runner local: a complete network.
        repeats: Measured repetitions per size; six or more give 95 % intervals.
        reference: Schedule, program or library:NAME to compare with; both are measured alternately.
        timeout: Seconds after which a run counts as hung.
        seed: Seed of the input data.
        wants_calibration: Fit latency, overhead and bandwidth to the times; this measures a few more programs.
        trace: Write the time of every instruction on every rank to a .json file for Perfetto.

    Example: chorale run torus.parquet --runner local --sizes 64KiB,1M --link-mbps 50 --reference ring.parquet
    """
    sizes_bytes = parse_sizes(sizes)
    if trace is not None and trace.suffix != ".json":
        raise InvalidInput("the name of a trace must end in .json", trace, "name it for example trace.json")
    config = runner_config(runner, choices.options_of_runner())
    network, collective = None if spec is None else load_topology(spec), load_collective(collective_file)
    read = partial(load_runnable, target=config.lowering(), collective=collective)
    any_network = runner == LocalConfig.name
    if job.wants_job:
        topology = read(file, network, any_network=any_network).topology
        run_as_job(job, job_name(Path(file).name), config, topology, resumes=False)
        return None
    stop_before_the_job_ends()
    with closing(config.create(Home.from_environment().root)) as running:
        runnable = read(file, network, any_network=any_network)
        topology, program = runnable.topology, runnable.program
        if network is None and is_program_file(file) and program.name.split()[-1:] != [topology.spec]:
            people.print(f"the program names no network: it runs on {topology.spec}; --spec chooses another")
        runnables: dict[str, Runnable] = {file: runnable}
        library: tuple[str, ...] = ()
        others: Mapping[str, AnyProgram] = {}
        if wants_calibration:
            if not isinstance(program, Program):
                rule = "--calibrate does not work with plans: {}"
                raise InvalidInput(rule, file, "leave --calibrate out")
            others = calibration_programs(program, topology, config.lowering().target)
        if reference is not None and reference.startswith(base.LIBRARY):
            library = (reference.removeprefix(base.LIBRARY),)
        elif reference is not None:
            runnables[reference] = _reference(reference, file, topology, read)
        programs = {**{name: item.program for name, item in runnables.items()}, **others}
        settings = {name: item.settings for name, item in runnables.items() if item.settings is not None}
        request = base.RunRequest(topology, programs, sizes_bytes, repeats, 1, timeout, dtype, seed, library, settings)
        request = replace(request, trace=trace is not None)
        with exclusive(machine_lock(), ALONE_PATIENCE_S) if config.capabilities.is_live else nullcontext():
            measurement = believable(request, running.submit(request))
    if isinstance(measurement, base.RunFailure):
        return _failure(runner, measurement)
    limit = link_limit(topology, collective_of_ranks(program), measurement.environment)
    report = RunReport(file, program, measurement, reference, limit)
    if wants_calibration:
        observations = observations_of(measurement, request.without_plans, topology)
        report = replace(report, calibration=calibrate(observations, topology.bandwidth_unit))
    if trace is not None:
        traces = measurement.traces.get(file, ())
        if not (traces and all(traces)) or not isinstance(program, Program):
            rule = "only programs (no plans) on the runners local, mpi and oneccl can be traced, not {}"
            raise Unavailable(rule, f"{file} on {runner}", "leave --trace out")
        write_file(trace, trace_events(program, traces).encode())
    return report.result()


def _reference(reference: str, file: str, topology: Topology, read: Callable[..., Runnable]) -> Runnable:
    """Return the program in `reference`. Raises InvalidInput if it is the same as `file` or for another network."""
    if reference == file:
        raise InvalidInput(
            "the reference {} is the same file", reference, "name another file, or a copy to see how times vary"
        )
    other = read(reference, topology if is_program_file(reference) else None)
    if other.topology.id != topology.id:
        rule = f"a reference must be for the same network, {topology.spec}"
        raise InvalidInput(rule, f"{reference} for {other.topology.spec}", "choose another reference")
    return other


def _failure(runner: str, failure: base.RunFailure) -> Result:
    print_error(f"{failure.kind}: {failure.message}")
    facts = {"kind": failure.kind.value, "message": failure.message, "rank": failure.rank}
    blocked = [dict(zip(("rank", "block", "instruction"), position, strict=True)) for position in failure.blocked]
    document = {"failure": {**facts, "blocked": blocked}, "environment": dict(failure.environment)}
    code = Unavailable.exit_code if failure.kind is base.FailureKind.UNAVAILABLE else 1
    return Result({"runner": runner, "results": [], **document}, exit_code=code)


@dataclass(frozen=True, slots=True)
class RunReport:
    """The results of `chorale run`: measured times of the program in `file` and of the reference, if any.

    reference:   the program to compare with, as on the command line
    limit:       shortest times that the links allow; None if the links' rates are not known
    calibration: costs of messages that were fitted to the times, if requested
    """

    file: str
    program: AnyProgram
    measurement: base.Measurement
    reference: str | None
    limit: LinkLimit | None
    calibration: Calibration | None = None

    @property
    def crowded(self) -> str | None:
        """Return why the times cannot be compared (more ranks than cores, on loopback), or None if they can."""
        environment, ranks = self.measurement.environment, rank_count(self.program)
        cores = environment.get("cores")
        if environment.get("network") != "loopback" or not isinstance(cores, int) or ranks <= cores:
            return None
        return f"{ranks} ranks share {cores} cores, and loopback is not a network"

    def row(self, measured: base.SizeMeasurement) -> dict[str, Any]:
        algbw = measured.size_bytes / measured.median_s / 1e9
        limit = self.limit
        of_limit = {} if limit is None else {"efficiency": limit.efficiency(measured.median_s, measured.size_bytes)}
        return {
            "size_bytes": measured.size_bytes,
            "time_us_median": measured.median_s * 1e6,
            "time_us_iqr": measured.iqr_s * 1e6,
            "time_us_min": measured.min_s * 1e6,
            "repeats": len(measured.times_s),
            "algbw_gb_per_s": algbw,
            "busbw_gb_per_s": algbw * base.bus_factor(collective_of_ranks(self.program).name, rank_count(self.program)),
            **of_limit,
            "correct": measured.correct,
        }

    def result(self) -> Result:
        """Return the result of the command: times, compared with the reference and with the limit of the links."""
        measurement, reference = self.measurement, self.reference
        pieces = " in pieces of 16 bytes" if self.program.one_sided else ""
        for size in measurement.results[self.file]:
            if size.size_bytes != size.requested_bytes:
                chunks = f"so that its elements fill {self.program.chunks} chunks{pieces}"
                requested = format_size(size.requested_bytes)
                people.print(f"{requested} is rounded up to {size.size_bytes} bytes, {chunks}")
        for key in ("memory_channels", "port_channels", "switch_channels", "switches", "warning"):
            if measurement.environment.get(key) is not None:
                people.print(f"{key.replace('_', ' ')}: {measurement.environment[key]}")
        rows = []
        for number, size in enumerate(measurement.results[self.file]):
            times = median_interval(size.times_s)
            row = self.row(size) | {"time_us_interval": [times.low * 1e6, times.high * 1e6]}
            rows.append(row | {"confidence": times.confidence})
            if reference is not None and self.crowded is None:
                ratio = ratio_interval(size.times_s, measurement.results[reference][number].times_s)
                interval = {name: getattr(ratio, name) for name in ("median", "low", "high", "confidence")}
                rows[-1]["ratio_to_reference"] = {"reference": reference, **interval}
        document = {"runner": measurement.runner, "results": rows, "environment": dict(measurement.environment)}
        if self.crowded is not None:
            document["not_compared"] = self.crowded
        if reference is not None:
            others = [self.row(size) for size in measurement.results[reference]]
            document["reference"] = {"name": reference, "results": others}
        if self.calibration is not None:
            document["calibration"] = self.calibration.to_json()
        first = format_size(min(row["size_bytes"] for row in rows))
        step = f"chorale table write {quote(self.file)} --sizes {first}- -o job.table"
        is_right = all(row["correct"] is not False for row in rows)
        return Result(document, *self._shown(rows), next_step=step if is_right else None)

    def _shown(self, rows: Sequence[dict[str, Any]]) -> Iterator[Table | str]:
        measurement = self.measurement
        columns: Columns = {
            "size": lambda row: format_size(row["size_bytes"]),
            "median us": lambda row: _microseconds(row["time_us_median"]),
            "IQR us": lambda row: _microseconds(row["time_us_iqr"]),
            "min us": lambda row: _microseconds(row["time_us_min"]),
            "algbw GB/s": lambda row: f"{row['algbw_gb_per_s']:.3g}",
            "busbw GB/s": lambda row: f"{row['busbw_gb_per_s']:.3g}",
            **({} if self.limit is None else {"of limit": lambda row: f"{row['efficiency']:.0%}"}),
            "right": lambda row: {True: "yes", False: "NO", None: "unchecked"}[row["correct"]],
        }
        title = f"{self.file}: {collective_of_ranks(self.program)} on {measurement.runner}"
        yield rows_table(rows, columns, title, numbers=True)
        if self.limit is not None:  # explain why bandwidths are low on paced links
            allowed, last = 1 / self.limit.seconds_per_byte / 1e9, rows[-1]
            rate = f"links of {float(Fraction(str(measurement.environment['link_mbps']))):g} Mbit/s"
            reached = f"{format_size(last['size_bytes'])} reached {last['efficiency']:.0%} of that"
            yield f"{rate} allow an algbw of {allowed:.3g} GB/s; {reached}"
        if self.crowded is not None:
            paced = "leave --where out to pace links"
            if measurement.runner != "local":  # only the local runner paces links without a fabric
                paced = "to pace links, run `chorale fabric up SPEC --link-mbps 50` first and leave --where out"
            yield f"{self.crowded}: results are checked, but times show no speed-up; {paced}"
        for row in rows if self.reference is not None and self.crowded is None else ():
            ratio = row["ratio_to_reference"]
            interval = f"{ratio['low']:.3f} to {ratio['high']:.3f} with {ratio['confidence']:.0%}"
            faster = f"{speed_text(ratio['median'])} {ratio['reference']}"
            yield f"{format_size(row['size_bytes'])}: {faster} (time ratio {interval}; {row['repeats']} repetitions)"
        if (fitted := self.calibration) is not None:
            unit = "a link" if fitted.bandwidth_unit == "link" else f"1 {fitted.bandwidth_unit}"
            facts = {
                "constant": format_us(fitted.constant_s),
                "alpha, for each message that must follow another": format_us(fitted.alpha_s),
                "overhead, for each message of a rank": format_us(fitted.overhead_s),
                f"{unit} carries": f"{fitted.unit_bytes_per_s * 8 / 1e9:.4g} Gbit/s",
                "relative error, mean and largest": f"{fitted.mean_error:.2%}, {fitted.max_error:.2%}",
            }
            if fitted.unseen_error is not None:
                facts["error of programs that the fit did not use"] = f"{fitted.unseen_error:.2%}"
            yield facts_table(f"calibration from {fitted.observations} measurements", facts.items())


def _microseconds(time_us: float) -> str:
    return f"{time_us:.1f}" if time_us < 10_000 else f"{time_us:.0f}"


def judge(
    results: Annotated[str, typer.Argument(metavar="RESULTS")],
    topology: Annotated[str, typer.Option(metavar="SPEC|FILE", autocompletion=opt.offer(opt.SPECS))],
    collective: str | None = None,
    link_gbps: str | None = None,
) -> Result:
    """Judge measured times against the bound and the library's own model.

    Prints a verdict, then for each size: the share of the bound, the time that NCCL's, RCCL's or MPI's own model
    predicts, what limits it, and whether it is unusually slow. Exit 1 if results were wrong.

    Args:
        results: Output of nccl-tests, rccl-tests, OSU or `chorale run --json`, in any of their formats.
        topology: Network on which the times were measured.
        collective: Collective to judge, if the file has several or does not name it.
        link_gbps: Gbit/s of a link, for networks without bandwidths.

    Example: chorale judge all_reduce.log --topology h100:1
    """
    network = load_topology(f"file:{topology}" if Path(topology).is_file() else topology)
    content, name = read_file(results, MAX_BYTES), Path(results).name
    judgement = judge_results(content, name, network, collective, link_gbps)
    code = 0 if judgement.is_right else 1
    shown = judgement.verdict, judgement.table()
    command = "alltoall" if judgement.collective == "alltoall" else "auto"
    step = f"chorale {command} {quote(network.spec)}"
    return Result(judgement.to_json(), *shown, *judgement.notes(), exit_code=code, next_step=step)


def trace_events(program: Program, executions: Sequence[Sequence[StepSpan]], gap_us: float = 1000.0) -> str:
    """Return a JSON trace with the steps of all ranks. A gap of `gap_us` separates each execution from the next one.

    In the trace, a rank is a process, and a thread block is a thread; times are in microseconds. The same executions
    give the same text.
    """
    events: list[dict[str, Any]] = []
    for rank, part in enumerate(program.ranks):
        events.append({"ph": "M", "pid": rank, "name": "process_name", "args": {"name": f"rank {rank}"}})
        events.append({"ph": "M", "pid": rank, "name": "process_sort_index", "args": {"sort_index": rank}})
        for number, block in enumerate(part.blocks):
            peers = [f"from {block.recv_peer}"] if block.recv_peer is not None else []
            peers += [f"to {block.send_peer}"] if block.send_peer is not None else []
            name = f"block {number} {' '.join(peers)} channel {block.channel}"
            events.append({"ph": "M", "pid": rank, "tid": number, "name": "thread_name", "args": {"name": name}})
    begin_us = 0.0
    for spans in executions:
        for span in spans:
            step = program.ranks[span.rank].blocks[span.block].instructions[span.step]
            moved_us = max(span.start_s - span.ready_s, 0.0) * 1e6 if span.start_s else 0.0
            times = {"ts": round(begin_us + span.ready_s * 1e6, 3), "dur": round((span.end_s - span.ready_s) * 1e6, 3)}
            facts: dict[str, Any] = {"step": span.step, "part": span.part, "chunks": step.count}
            facts["until_first_byte_us"] = round(moved_us, 3)
            event = {"ph": "X", "pid": span.rank, "tid": span.block, "name": step.op.value}
            events.append({**event, **times, "args": facts})
        begin_us += max(span.end_s for span in spans) * 1e6 + gap_us
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": events}, separators=(",", ":"))
