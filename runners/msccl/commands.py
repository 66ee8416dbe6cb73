"""Sizes, command lines and environment variables of the test programs that a job launches on GPUs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Literal

from chorale.runners.msccl.options import DTYPES, JobOptions
from chorale.runners.msccl.runtimes import JOB, MPI_TYPE, MSCCL, PART, STEP, Runtime
from chorale.synth.collective import CollectiveName
from chorale.synth.errors import InvalidInput
from chorale.synth.programs.memory import SPLIT_BY_RANK
from chorale.synth.programs.program import Program, Protocol
from chorale.synth.targets.registry import target_named

ALIGNMENT_BYTES = 16
"""The test programs round what each rank of a sharded collective gets down to a multiple of this."""


@dataclass(frozen=True, slots=True)
class SizeProgression:
    """Sizes that one command line of a test program names: each is `factor` times the one before."""

    sizes_bytes: tuple[int, ...]
    factor: int


def served_size(size_bytes: int, element_bytes: int, programs: Iterable[Program]) -> int:
    """Return the smallest size >= `size_bytes` that all `programs`, which must be for one collective, can serve.

    The elements must fill the chunks, else the runtime falls back without a word. Of sharded collectives, even those
    that each rank gets must: RCCL asks for that, the others for less.
    """
    granule = element_bytes
    for program in programs:
        ranks = len(program.ranks)
        if program.collective.name in SPLIT_BY_RANK:
            share = math.lcm(element_bytes * program.chunks, ALIGNMENT_BYTES)
            granule = math.lcm(granule, ranks * share)
        else:
            granule = math.lcm(granule, element_bytes * program.chunks)
    return -(-size_bytes // granule) * granule


def size_mismatch(program: Program, size_bytes: int, element_bytes: int) -> str | None:
    """Return in one line why a runtime would take its own algorithm for calls of this size, None if it would not."""
    if size_bytes != served_size(size_bytes, element_bytes, [program]):
        return f"its elements cannot be cut into {program.chunks} chunks"
    most = program.max_bytes or target_named(program.target).limits.largest_max_bytes
    if size_bytes < program.min_bytes or (most is not None and size_bytes > most):
        return f"it serves {program.min_bytes} to {'any number of' if most is None else most} bytes"
    if program.in_place and program.collective.name is CollectiveName.ALLTOALL:
        return "calls of alltoall are never in place, and it serves no others"
    return None


def size_progressions(sizes_bytes: Sequence[int]) -> list[SizeProgression]:
    """Return ranges that together are exactly `sizes_bytes`, in rising order; as few as the greedy way finds."""
    remaining = sorted(set(sizes_bytes))
    ranges = []
    while remaining:
        factors = [size // remaining[0] for size in remaining[1:] if size % remaining[0] == 0] or [2]
        series = max((_series(remaining[0], factor, set(remaining)) for factor in factors), key=len)
        ranges.append(SizeProgression(tuple(series), series[1] // series[0] if len(series) > 1 else 2))
        remaining = [size for size in remaining if size not in series]
    return ranges


def _series(first: int, factor: int, sizes: Set[int]) -> list[int]:
    series = [first]
    while series[-1] * factor in sizes:
        series.append(series[-1] * factor)
    return series


TEST_PROGRAMS: Mapping[CollectiveName, str] = {
    CollectiveName.ALLREDUCE: "all_reduce_perf",
    CollectiveName.ALLGATHER: "all_gather_perf",
    CollectiveName.REDUCE_SCATTER: "reduce_scatter_perf",
    CollectiveName.BROADCAST: "broadcast_perf",
    CollectiveName.REDUCE: "reduce_perf",
    CollectiveName.ALLTOALL: "alltoall_perf",
}

PROOF_ITERATIONS = 2
"""Calls of each size and placement in a proof, besides those that check and warm up."""


def perf_command(program: Program, options: JobOptions, sizes: SizeProgression) -> list[str]:
    """Return the command of one rank but for `-n` and `-w`: one GPU per process, checked once, mean over the ranks."""
    collective = program.collective
    name = TEST_PROGRAMS[collective.name]
    command = [name if options.tests_folder is None else f"{options.tests_folder}/{name}"]
    command += ["-b", str(sizes.sizes_bytes[0]), "-e", str(sizes.sizes_bytes[-1]), "-f", str(sizes.factor)]
    command += ["-d", DTYPES[options.dtype]]
    if collective.reduces:
        command += ["-o", "sum"]
    if collective.is_rooted:
        command += ["-r", str(collective.root or 0)]
    return [*command, "-g", "1", "-c", "1", "-a", "1"]


def gpus_per_node(ranks: int, options: JobOptions) -> int:
    """Return how many ranks each node has; InvalidInput unless every rank gets a GPU and every GPU of a host a rank."""
    nodes = len(options.hosts)
    per_node = options.gpus_per_node or -(-ranks // max(1, nodes))
    if nodes and nodes * per_node != ranks:
        there = f"{nodes} hosts with {per_node} GPUs"
        raise InvalidInput(f"the hosts must have exactly {ranks} GPUs, one per rank", there, "name other hosts")
    if ranks % per_node:
        raise InvalidInput(f"gpus_per_node must divide the {ranks} ranks", per_node, "choose a divisor")
    return per_node


def launch_command(ranks: int, options: JobOptions) -> list[str]:
    """Return what starts the command that follows it once for each rank, node by node in the order of `hosts`."""
    per_node = gpus_per_node(ranks, options)
    hosts = ",".join(options.hosts)
    if options.launcher == "openmpi":
        slots = ",".join(f"{host}:{per_node}" for host in options.hosts)
        command = ["mpirun", "-np", str(ranks), "--map-by", f"ppr:{per_node}:node"]
        return [*command, "--host", slots] if slots else command
    if options.launcher == "mpich":
        command = ["mpiexec", "-n", str(ranks), "-ppn", str(per_node)]
        return [*command, "-hosts", hosts] if hosts else command
    return srun_command(ranks, per_node, options)


def srun_command(ranks: int, per_node: int, options: JobOptions) -> list[str]:
    """Return the command of Slurm's launcher; a shell has to put in what begins with `$`.

    Steps share what other steps of the job hold, such as the one that this command may be in. srun keeps an order of
    nodes only where it is told the node of every rank; otherwise the number of nodes is said, as it would take all of a
    larger allocation, and so is the order of ranks, which a site may have changed.
    """
    command = ["srun", f"--mpi={options.mpi or MPI_TYPE}", "--overlap", "--kill-on-bad-exit=1", f"--job-name={STEP}"]
    command += [f"--nodes={ranks // per_node}", f"--ntasks={ranks}"]
    if options.hosts:
        nodes = ",".join(host for host in options.hosts for _ in range(per_node))
        return [*command, "--distribution=arbitrary", f"--nodelist={nodes}"]
    return [*command, f"--ntasks-per-node={per_node}", "--distribution=block"]


Mode = Literal["program", "proof", "library", "library-ring", "library-tree"]
"""The program timed; the program with a log that says whether it ran, which costs time; the library by itself, with the
algorithm that it chooses or with one of its own."""

MODES: tuple[Mode, ...] = ("program", "proof", "library")
"""What every job can do; the others only where they are asked for."""

PINNED_ALGORITHMS: Mapping[Mode, str] = {"library-ring": "RING", "library-tree": "TREE"}
"""NCCL_ALGO of the modes in which the library does not choose."""

LIBRARY_PATH_SUFFIX = "${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
"""What a shell puts after the folder of a library: the folders that are there already, if any."""

BUFFER_VARIABLES: Mapping[Protocol, str] = {
    "Simple": "NCCL_BUFFSIZE",
    "LL": "NCCL_LL_BUFFSIZE",
    "LL128": "NCCL_LL128_BUFFSIZE",
}
"""The size of a connection's buffer; each protocol has its own."""


def mode_environment(program: Program, runtime: Runtime, options: JobOptions, mode: Mode) -> dict[str, str]:
    """Return the variables of a mode; values may contain `runtimes.JOB`, `runtimes.PART` and `LIBRARY_PATH_SUFFIX`.

    Buffers and channels are the program's settings: the library keeps its own.
    """
    variables = dict(options.environment)
    if is_library(mode):
        variables |= runtime.disabling
        if mode in PINNED_ALGORITHMS:
            variables["NCCL_ALGO"] = PINNED_ALGORITHMS[mode]
    else:
        variables |= {**runtime.enabling, **_program_settings(program, runtime, options)}
    if mode == "proof":
        variables |= {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": runtime.subsystems}
    else:
        variables["NCCL_DEBUG"] = "WARN"
    # Each process logs to a file of its own, so that no log cuts through the table on standard output.
    variables["NCCL_DEBUG_FILE"] = f"{JOB}/logs/{mode}.{PART}.%h.%p.txt"
    if options.library_folder is not None:
        variables["LD_LIBRARY_PATH"] = options.library_folder + LIBRARY_PATH_SUFFIX
    return variables


def unwanted_variables(runtime: Runtime, mode: Mode) -> list[str]:
    """Return the variables that must not be set in a mode, whoever may have set them."""
    return [name for name in runtime.enabling if is_library(mode) and name not in runtime.disabling]


def is_library(mode: Mode) -> bool:
    """Whether no program is executed in this mode."""
    return mode == "library" or mode in PINNED_ALGORITHMS


def _program_settings(program: Program, runtime: Runtime, options: JobOptions) -> dict[str, str]:
    settings = {}
    if options.buffer_bytes is not None:
        settings[BUFFER_VARIABLES[program.protocol]] = str(options.buffer_bytes)
    if runtime.needs_channels:
        settings["NCCL_MIN_NCHANNELS"] = str(program.channels)
    if runtime is MSCCL and program.protocol == "LL128":
        settings["NCCL_PROTO"] = "Simple,LL,LL128"  # on some GPUs it is off unless it is named
    return settings
