"""One request on GPUs: writes its jobs, proves that the programs run, launches them in turns and reads the times."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from chorale.runners.api.base import FailureKind, ProgramSettings, RunRequest, SizeMeasurement, library_result
from chorale.runners.msccl.commands import (
    PROOF_ITERATIONS,
    Mode,
    gpus_per_node,
    is_library,
    served_size,
    size_progressions,
)
from chorale.runners.msccl.job_files import EXECUTABLE, job_files
from chorale.runners.msccl.options import JobOptions
from chorale.runners.msccl.output_parser import parse_output
from chorale.runners.msccl.results import LaunchFault, LaunchResult, launch_times, log_fault, time_fault, with_way_out
from chorale.runners.msccl.runtimes import Runtime, runtime_for
from chorale.runners.process_launch.base import STDERR, STDOUT, Host, ProcessSpec
from chorale.runners.process_launch.placement import RankHost, host_names, placement_fault
from chorale.runners.process_launch.slurm import mpi_types
from chorale.synth.errors import InvalidInput
from chorale.synth.identity import content_id
from chorale.synth.programs.program import Program

_POLL_S = 0.05


def write_job(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write the files of a job into `folder`, scripts so that they can be executed."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(0o755 if name.endswith(EXECUTABLE) else 0o644)


def launch(host: Host, folder: Path, mode: Mode, parts: int, deadline_s: float) -> LaunchResult:
    """Run the job in `folder` on `host` until it ends; kill it when the monotonic clock shows `deadline_s`.

    parts: how many test programs it starts, one after the other
    """
    started = host.start(ProcessSpec((str(folder / "run.sh"), mode)))
    try:
        while (code := started.poll()) is None and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)
        if code is None:
            started.kill()
        output = started.read(STDOUT).decode(errors="replace")
        errors = started.read(STDERR).decode(errors="replace")
    finally:
        started.close()
    logs = tuple(_logs(folder, f"{mode}.{part}.*") for part in range(parts))
    return LaunchResult(code, output, errors, logs, _rank_hosts(folder, mode))


def _rank_hosts(folder: Path, mode: Mode) -> dict[int, RankHost]:
    """Return what the ranks of the last launch in `mode` said of their hosts."""
    said = {path: path.read_text(errors="replace").split() for path in sorted((folder / "hosts").glob(f"{mode}.*"))}
    return {int(path.suffix[1:]): RankHost.of_words(words) for path, words in said.items() if words}


def _logs(folder: Path, names: str) -> tuple[str, ...]:
    return tuple(path.read_text(errors="replace") for path in sorted((folder / "logs").glob(names)))


DEFAULT_LIBRARY = "nccl"
"""The library's own choice, as it makes it when no program is there."""

LIBRARY_ALGORITHM_MODES: Mapping[str, Mode] = {
    DEFAULT_LIBRARY: "library",
    "ring": "library-ring",
    "tree": "library-tree",
}
"""The mode of a job in which each algorithm of the library is launched."""

VariantTimes = dict[int, list[float]]


class SessionStopped(Exception):  # noqa: N818 - a fault, handed on at once
    """The request has no measurement, for the reason `fault`."""

    def __init__(self, fault: LaunchFault) -> None:
        super().__init__(fault.message)
        self.fault = fault


@dataclass(frozen=True, slots=True)
class Variant:
    """What is launched: a mode of the job of a program. Its results have `name`."""

    name: str
    program: Program
    options: JobOptions
    folder: Path
    mode: Mode


@dataclass(frozen=True, slots=True)
class ExecutionProofs:
    """Jobs, by content id, that were seen to run.

    logged: by the log, and at which sizes
    timed:  by times that were not the library's at some size of a request; other sizes may well be as fast
    """

    logged: dict[str, set[int]] = field(default_factory=dict)
    timed: set[str] = field(default_factory=set)


class Session:
    """Measures one request; raises SessionStopped for the first fault.

    folder: for its jobs
    proofs: of jobs that were seen to run; this session adds its own
    printed_facts: facts about the machine that the launches printed, {} before the first
    """

    def __init__(
        self, request: RunRequest, options: JobOptions, folder: Path, host: Host, proofs: ExecutionProofs
    ) -> None:
        self._request = request
        self._host = host
        self._proofs = proofs
        self.printed_facts: dict[str, str | None] = {}
        programs = list(request.without_plans.values())
        self.runtime: Runtime = runtime_for(options.runtime, programs[0])
        given = replace(options, dtype=request.dtype)
        self._served = [served_size(size_bytes, given.element_bytes, programs) for size_bytes in request.sizes_bytes]
        self.variants = [
            self._variant(name, given, folder / str(index)) for index, name in enumerate(request.without_plans)
        ]

    def measure(self, deadline_s: float) -> dict[str, tuple[SizeMeasurement, ...]]:
        """Return the results by name; `deadline_s` is when the monotonic clock ends it."""
        for variant in self.variants:
            self._prove(variant, deadline_s)
        libraries = [self._library_variant(name) for name in self._request.library]
        default = self._library_variant(DEFAULT_LIBRARY)  # what a program falls back to
        needs_default = self.runtime.scheduled is None and DEFAULT_LIBRARY not in self._request.library
        times = self._turns([*self.variants, *libraries, *([default] if needs_default else [])], deadline_s)
        if self.runtime.scheduled is None:
            self._require_own_times(times, times[default.name])
        return {variant.name: self._measurements(times[variant.name]) for variant in (*self.variants, *libraries)}

    def _variant(self, name: str, given: JobOptions, folder: Path) -> Variant:
        """Write the job of a program; it is rejected if the runtime would not execute it at some size."""
        settings = self._request.settings.get(name, ProgramSettings())
        options = replace(
            given,
            sizes_bytes=tuple(sorted(set(self._served))),
            buffer_bytes=settings.buffer_bytes or given.buffer_bytes,
            warmup=max(given.warmup, self._request.warmup),
            pinned=tuple(name for name in self._request.library if name != DEFAULT_LIBRARY),
        )
        program = self._request.without_plans[name]
        try:
            write_job(folder, job_files(program, options))
        except InvalidInput as error:
            raise SessionStopped(LaunchFault(FailureKind.REJECTED, f"program {name}: {error}")) from error
        return Variant(name, program, options, folder, "program")

    def _library_variant(self, algorithm: str) -> Variant:
        return replace(self.variants[0], name=library_result(algorithm), mode=LIBRARY_ALGORITHM_MODES[algorithm])

    def _prove(self, variant: Variant, deadline_s: float) -> None:
        sizes = set(variant.options.sizes_bytes)
        proven = self._proofs.logged.setdefault(_job_id(variant), set())
        if sizes <= proven:
            return
        launched, _ = self._launch(replace(variant, mode="proof"), deadline_s)
        for logs, part in zip(launched.logs, size_progressions(variant.options.sizes_bytes), strict=True):
            calls = PROOF_ITERATIONS * len(part.sizes_bytes)
            if (reason := log_fault(self.runtime, logs, len(variant.program.ranks), calls)) is not None:
                raise SessionStopped(LaunchFault(FailureKind.REJECTED, f"program {variant.name} fell back: {reason}"))
        proven |= sizes

    def _turns(self, variants: Sequence[Variant], deadline_s: float) -> dict[str, VariantTimes]:
        """Launch every variant once per repetition; return the seconds by variant and size, in order of launch."""
        times: dict[str, VariantTimes] = {variant.name: {size: [] for size in self._served} for variant in variants}
        random = np.random.default_rng(self._request.seed)
        for _ in range(self._request.repeats):
            for index in random.permutation(len(variants)):
                _, measured = self._launch(variants[index], deadline_s)
                for size_bytes, time_s in measured.items():
                    times[variants[index].name][size_bytes].append(time_s)
        return times

    def _launch(self, variant: Variant, deadline_s: float) -> tuple[LaunchResult, Mapping[int, float]]:
        sizes, ranks = variant.options.sizes_bytes, len(variant.program.ranks)
        parts = len(size_progressions(sizes))
        launched = launch(self._host, variant.folder, variant.mode, parts, deadline_s)
        if (nodes := host_names(launched.rank_hosts)) is not None:
            self.printed_facts["nodes"] = nodes
        per_host = gpus_per_node(ranks, variant.options)
        if (fault := placement_fault(variant.options.hosts, per_host, launched.rank_hosts)) is not None:
            raise SessionStopped(LaunchFault(FailureKind.UNAVAILABLE, fault))
        measured = launch_times(launched, sizes, parts, ranks, variant.program.in_place)
        if isinstance(measured, LaunchFault):
            what = (
                variant.name.replace("library:", "the library's ")
                if is_library(variant.mode)
                else f"program {variant.name}"
            )
            if variant.options.launcher == "srun":
                measured = with_way_out(measured, mpi_types())
            raise SessionStopped(replace(measured, message=f"{what}: {measured.message}"))
        parsed = parse_output(launched.output)
        self.printed_facts |= {"gpu": parsed.device, "library_version": parsed.version}
        return launched, measured

    def _require_own_times(self, times: Mapping[str, VariantTimes], library: VariantTimes) -> None:
        for variant in self.variants:
            if _job_id(variant) in self._proofs.timed:
                continue
            if (reason := time_fault(times[variant.name], library)) is not None:
                raise SessionStopped(LaunchFault(FailureKind.REJECTED, f"program {variant.name} fell back: {reason}"))
            self._proofs.timed.add(_job_id(variant))

    def _measurements(self, times: Mapping[int, Sequence[float]]) -> tuple[SizeMeasurement, ...]:
        pairs = zip(self._request.sizes_bytes, self._served, strict=True)
        return tuple(SizeMeasurement(size, requested, tuple(times[size]), correct=True) for requested, size in pairs)


def _job_id(variant: Variant) -> str:
    """Return the content id of what a proof is about: the program and its environment, but for the sizes."""
    files = (variant.folder / "algorithms/program.xml", variant.folder / "environment/program.sh")
    return content_id([path.read_text() for path in files])
