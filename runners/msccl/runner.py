"""MscclRunner: programs on GPUs, executed by MSCCL, its executor or RCCL, and timed by nccl-tests."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

from chorale.runners.api.base import FailureKind, Measurement, Outcome, ResourceRequest, RunFailure, RunRequest
from chorale.runners.api.config import MeasurerRequest
from chorale.runners.api.validation import RequestFault, validate_request
from chorale.runners.measurement.machine import environment_id, load_average, machine_facts
from chorale.runners.msccl.commands import gpus_per_node, launch_command, perf_command, size_progressions
from chorale.runners.msccl.config import MscclConfig
from chorale.runners.msccl.options import DTYPES, JobOptions, Launcher
from chorale.runners.msccl.session import DEFAULT_LIBRARY, ExecutionProofs, Session, SessionStopped
from chorale.runners.process_launch.base import GpuCluster, Host
from chorale.runners.process_launch.local import LocalHost, watched_folder
from chorale.runners.process_launch.mpich import MpichHost
from chorale.runners.process_launch.slurm import TASK_RESOURCE, SlurmHost, in_slurm_job, require_one_process
from chorale.synth.errors import InvalidInput, Unavailable
from chorale.synth.topology.topology import Topology

PINNED_FOR = {"allreduce": ("ring", "tree"), "allgather": ("ring",), "reduce_scatter": ("ring",)}
"""What NCCL has for each collective on all machines, besides its own choice."""

Facts = dict[str, str | int | float | None]


class MscclRunner:
    """Implements `Runner` on GPUs, one process for each, with a launcher that starts them on all nodes.

    options: where and how; the sizes, element type and buffers of a request replace those in it
    folder:  where jobs are written for a while; all nodes must see it under the same path. None: the temporary
             folder of this machine, which is enough for one node
    host:    where the launcher is started
    cluster: lends the nodes and replaces `options.hosts` and `host`; the launcher must be MPICH's

    A repetition is a launch: the mean of `options.iterations` calls. Programs, and the library beside them, are
    launched in turns, in random order within every repetition. Before, each program is launched once with a log that
    says whether the runtime executed it; one that was not executed is a RunFailure `rejected`, whatever its times.
    Where a runtime logs no calls, times that are the library's at every size count as a fall-back too, unless those of
    the same job were not in an earlier request. Buffers are set for programs only: the library has its own.
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
        """Return the library's own choice, and the algorithms of its own that it can be told to take."""
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
    """Return the runner. node: what each node of a Ray cluster must have besides GPUs, where the launcher is `ray`.

    Raises InvalidInput for what `JobOptions` refuses, and where this is one of several processes of a launcher.
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
    """Raise InvalidInput where hosts, GPUs and ranks of a campaign do not go together."""
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
