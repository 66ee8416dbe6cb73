"""MscclRunner: programs on GPUs, executed by MSCCL, its executor or RCCL, and timed by nccl-tests."""

import contextlib
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import numpy as np

from chorale.runners.api.base import (
    FailureKind,
    Measurement,
    Outcome,
    ProgramSettings,
    ResourceRequest,
    RunFailure,
    RunRequest,
    SizeMeasurement,
    library_result,
)
from chorale.runners.api.config import MeasurerRequest
from chorale.runners.api.validation import RequestFault, validate_request
from chorale.runners.measurement.machine import environment_id, load_average, machine_facts
from chorale.runners.msccl.commands import (
    DTYPES,
    PROOF_ITERATIONS,
    JobOptions,
    Mode,
    Runtime,
    is_library,
    perf_command,
    rocm_fault,
    runtime_for,
    served_size,
    size_progressions,
)
from chorale.runners.msccl.config import MscclConfig
from chorale.runners.msccl.job_files import EXECUTABLE, job_files
from chorale.runners.msccl.results import (
    LaunchFault,
    LaunchResult,
    launch_times,
    log_fault,
    parse_output,
    time_fault,
    with_way_out,
)
from chorale.runners.process_launch.launchers import Launcher, gpus_per_node, launch_command
from chorale.runners.process_launch.placement import RankHost, host_names, placement_fault
from chorale.runners.process_launch.processes import (
    STDERR,
    STDOUT,
    GpuCluster,
    Host,
    LocalHost,
    MpichHost,
    ProcessSpec,
    watched_folder,
)
from chorale.runners.process_launch.slurm import TASK_RESOURCE, SlurmHost, in_slurm_job, mpi_types, require_one_process
from chorale.synth.errors import InvalidInput, Unavailable
from chorale.synth.identity import content_id
from chorale.synth.programs.program import Program
from chorale.synth.topology.topology import Topology

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
    logs = tuple(_texts(folder / "logs", f"{mode}.{part}.*") for part in range(parts))
    said = {int(path.suffix[1:]): text.split() for path, text in _texts(folder / "hosts", f"{mode}.*").items()}
    hosts = {rank: RankHost.of_words(words) for rank, words in said.items() if words}
    return LaunchResult(code, output, errors, tuple(tuple(texts.values()) for texts in logs), hosts)


def _texts(folder: Path, names: str) -> dict[Path, str]:
    return {path: path.read_text(errors="replace") for path in sorted(folder.glob(names))}


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
    """What is launched: a mode of a program's job. `name` is the name of its results."""

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


PINNED_FOR = {"allreduce": ("ring", "tree"), "allgather": ("ring",), "reduce_scatter": ("ring",)}
"""Algorithms that NCCL has for each collective on all machines, besides its own choice."""

Facts = dict[str, str | int | float | None]


class MscclRunner:
    """Implements `Runner` on GPUs, one process for each, with a launcher that starts them on all nodes.

    options: where and how; sizes, element type and buffers come from the request
    folder:  where jobs are written temporarily; all nodes must see it under the same path. None for the temporary
    folder
             of this machine, which suffices for one node
    host:    where the launcher is started
    cluster: lends the nodes and replaces `options.hosts` and `host`; the launcher must be MPICH's

    A repetition is a launch: the mean of `options.iterations` calls. Programs and library are launched alternately, in
    random order within every repetition. Before that, each program is launched once with a log that shows whether the
    runtime executed it; if it did not, the result is a RunFailure `rejected`, whatever the times. If a runtime logs no
    calls, times that equal the library's at every size count as a fall-back too, unless an earlier request of the same
    job had other times. Buffers are set for programs only; the library keeps its own.
    """

    name = "msccl"

    def __init__(
        self,
        options: JobOptions,
        folder: Path | None = None,
        host: Host | None = None,
        cluster: GpuCluster | None = None,
    ) -> None:
        self._options = options
        self._folder = folder
        self._host = host or (SlurmHost() if in_slurm_job() else LocalHost())
        self._cluster = cluster
        self._proofs = ExecutionProofs()

    def library(self, collective: str) -> tuple[str, ...]:
        """Return the library's own choice, and its algorithms that can be forced."""
        return (DEFAULT_LIBRARY, *PINNED_FOR.get(collective, ()))

    def close(self) -> None:
        """Nothing is held between requests."""

    def submit(self, request: RunRequest) -> Outcome:
        """Run `request`; see the port for the contract."""
        deadline_s = time.monotonic() + request.timeout_s
        environment: Facts = {**machine_facts(), "runner": self.name}
        if (fault := validate_request(request, self.library, self._faults)) is not None:
            return RunFailure(*fault, environment=_identified(environment))
        try:
            with self._nodes(request) as (options, host), watched_folder("chorale-msccl-", self._folder) as folder:
                session = Session(request, options, folder, host, self._proofs)
                environment |= _facts(session)
                try:
                    results = session.measure(deadline_s)
                finally:
                    environment |= session.printed_facts
        except SessionStopped as stopped:
            return RunFailure(stopped.fault.kind, stopped.fault.message, environment=_identified(environment))
        except (InvalidInput, Unavailable) as error:
            kind = FailureKind.UNAVAILABLE if isinstance(error, Unavailable) else FailureKind.REJECTED
            return RunFailure(kind, str(error), environment=_identified(environment))
        except OSError as error:
            message = f"the folder of jobs must be writable: {error}"
            return RunFailure(FailureKind.UNAVAILABLE, message, environment=_identified(environment))
        return Measurement(self.name, results, _identified(environment))

    @contextlib.contextmanager
    def _nodes(self, request: RunRequest) -> Iterator[tuple[JobOptions, Host]]:
        """Borrow nodes for a request, if they are not simply there."""
        if self._cluster is None:
            yield self._options, self._host
            return
        try:
            ranks = request.topology.compute_count
            lease = self._cluster.lease(ranks, self._options.gpus_per_node)
            hosts = tuple(host.address for host in lease.hosts)
            options = replace(self._options, hosts=hosts, gpus_per_node=lease.gpus_per_node)
            yield options, MpichHost(lease.hosts)
        finally:
            self._cluster.release()

    def _faults(self, request: RunRequest) -> Iterator[RequestFault]:
        if (fault := rocm_fault(self._options.runtime)) is not None:
            yield FailureKind.REJECTED, fault
        if request.dtype not in DTYPES:
            yield FailureKind.REJECTED, f"the test programs have no element type {request.dtype}"
        if len({program.in_place for program in request.without_plans.values()}) > 1:
            yield FailureKind.REJECTED, "all programs of a request must be of one placement"
        try:
            unmet = self._unmet_need(request)
        except InvalidInput as error:
            yield FailureKind.REJECTED, str(error)
        else:
            if unmet is not None:
                yield FailureKind.UNAVAILABLE, unmet

    def _unmet_need(self, request: RunRequest) -> str | None:
        first = next(iter(request.without_plans.values()))
        launcher = launch_command(len(first.ranks), self._options)[0]
        if shutil.which(launcher) is None:
            return f"there is no {launcher} here: run on a node of a GPU cluster, or choose another launcher"
        test = perf_command(first, self._options, size_progressions(request.sizes_bytes)[0])[0]
        if self._options.tests_folder is None and shutil.which(test) is None:
            return f"there is no {test} here: build nccl-tests (or rccl-tests) with MPI=1 and name its folder"
        if (self._options.hosts or self._cluster is not None) and self._folder is None:
            return "jobs on several hosts need a folder that all of them see under one path: name one"
        return None


def _facts(session: Session) -> Facts:
    variant = session.variants[0]
    options, ranks = variant.options, len(variant.program.ranks)
    return {
        "runtime": session.runtime.name,
        "launcher": options.launcher,
        "ranks": ranks,
        "gpus_per_node": gpus_per_node(ranks, options),
        "iterations": options.iterations,
        "buffer_bytes": options.buffer_bytes,
        "variables": " ".join(f"{name}={value}" for name, value in sorted(options.environment.items())),
    }


def _identified(environment: Facts) -> Facts:
    """Add the content id of all facts so far, which stay the same from run to run, and the load."""
    return {**environment, "environment_id": environment_id(environment), "load_average": load_average()}


def msccl_runner(config: MscclConfig, node: ResourceRequest) -> MscclRunner:
    """Create the runner. node: what each node of a Ray cluster must have besides GPUs, with the launcher `ray`

    Raises InvalidInput for options that `JobOptions` refuses, and if a launcher started several copies of this process.
    """
    require_one_process()
    folder = None if config.shared_folder is None else Path(config.shared_folder)
    return MscclRunner(job_options(config), folder, cluster=_lender(config, node))


def job_options(config: MscclConfig) -> JobOptions:
    """Return how jobs are launched; InvalidInput for names and numbers that cannot be."""
    if config.takes_nodes_from_ray and config.hosts:
        raise InvalidInput("the launcher ray chooses the nodes itself", ",".join(config.hosts), "leave out hosts")
    return JobOptions(
        sizes_bytes=(1,),  # those of each request take its place
        runtime=config.runtime,
        launcher="mpich" if config.takes_nodes_from_ray else cast(Launcher, config.launcher),
        hosts=tuple(config.hosts),
        gpus_per_node=config.gpus_per_node,
        tests_folder=config.tests_folder,
        library_folder=config.library_folder,
        buffer_bytes=config.buffer_bytes,
        iterations=config.iterations,
        environment=dict(config.variables),
        mpi=config.mpi,
    )


def check_gpus(config: MscclConfig, request: MeasurerRequest, topology: Topology) -> None:
    """Raise InvalidInput if hosts, GPUs and ranks of a campaign do not fit together."""
    ranks = topology.compute_count
    per_node = gpus_per_node(ranks, job_options(config))
    from_ray = config.takes_nodes_from_ray
    if from_ray and request.gpus not in (None, per_node):
        rule = "campaign key `runner.needs.gpus`: each node that Ray lends must have a GPU for each of its ranks"
        raise InvalidInput(rule, f"{request.gpus:g} GPUs for {per_node} ranks", "leave it out")
    several = from_ray or ranks > per_node
    has_nodes_each = TASK_RESOURCE in request.node.resources and not from_ray
    if several and request.count > 1 and not has_nodes_each:
        rule = "campaign key `runner.at_once`: launches over several nodes must not share them"
        raise InvalidInput(rule, request.count, "leave it at 1")
    if several and config.shared_folder is None:
        rule = "campaign key `runner.msccl.shared_folder`: jobs on several nodes need a folder that all of them see"
        raise InvalidInput(rule, "none", "name one, such as /shared/tmp")


def _lender(config: MscclConfig, node: ResourceRequest) -> GpuCluster | None:
    """Return what lends nodes; their CPUs stay free for launches, whatever a measurer holds."""
    if not config.takes_nodes_from_ray:
        return None
    from chorale.runners.ray.hosts import RayGpuCluster  # noqa: PLC0415 - Ray is slow to import

    return RayGpuCluster(ResourceRequest(0, 0, node.resources, node.labels))
