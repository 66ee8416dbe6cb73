"""Computes sizes, command lines and environment variables for the test programs that a job launches on GPUs."""

import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from chorale.runners.api.elements import ELEMENT_TYPES
from chorale.runners.nccl.parameters import PROGRAM, PROGRAM_FOLDER
from chorale.runners.process_launch.slurm import BUFFER_VARIABLES
from chorale.synth.collective import CollectiveName
from chorale.synth.errors import InvalidInput, unknown_name
from chorale.synth.programs.memory import SPLIT_BY_RANK
from chorale.synth.programs.program import Program
from chorale.synth.targets.registry import target_named

JOB = "$CHORALE_JOB"
"""Placeholder for the job's folder in the values of environment variables. The launch script sets this variable."""

PART = "$CHORALE_PART"
"""Placeholder in the values of environment variables for the test program's number within a launch."""
ALIGNMENT_BYTES = 16
"""In sharded collectives, the test programs round each rank's shard down to a multiple of this number."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """A library with NCCL's interface that executes programs of one target.

    target:    name of the program format, see `chorale.synth.targets.registry`
    enabling:  environment variables with which the library executes a job's program
    disabling: environment variables with which the library runs its own algorithms, used instead of `enabling`
    subsystems: value of NCCL_DEBUG_SUBSYS that makes the log show whether a program was loaded and run
    loaded, scheduled: regular expressions for the lines that are logged when a rank has loaded programs, and when a
                       program has executed a call (None if calls are not logged)
    """

    name: str
    title: str
    target: str
    enabling: Mapping[str, str]
    disabling: Mapping[str, str]
    subsystems: str
    loaded: str
    scheduled: str | None
    library: str  # the file that test programs link to
    threadblocks: int | None = None  # per rank, if the runtime supports fewer than its target
    needs_channels: bool = False  # whether a variable must contain the program's number of channels


MSCCL = Runtime(
    name="msccl",
    title="MSCCL (microsoft/msccl)",
    target="msccl-xml",
    enabling={"MSCCL_XML_FILES": f"{JOB}/{PROGRAM_FOLDER}/{PROGRAM}", "NCCL_ALGO": "MSCCL,RING,TREE"},
    disabling={},
    subsystems="INIT,ENV",
    loaded=r"Connected [1-9][0-9]* MSCCL algorithms",
    scheduled=None,
    library="libnccl.so",
)
EXECUTOR = Runtime(
    name="executor",
    title="the MSCCL executor for NCCL (Azure/msccl-executor-nccl)",
    target="msccl-executor-xml",
    enabling={"MSCCL_ALGO_DIR": f"{JOB}/{PROGRAM_FOLDER}", "NCCL_MSCCL_ENABLE": "1"},
    disabling={"NCCL_MSCCL_ENABLE": "0"},
    subsystems="INIT",
    loaded="MSCCL: Initialization finished",
    scheduled=r"MSCCL: .*Setup Kernel finished",
    library="libnccl.so",
)
RCCL = Runtime(
    name="rccl",
    title="RCCL of ROCm up to 7.12",
    target="msccl-executor-xml",
    enabling={"MSCCL_ALGO_DIR": f"{JOB}/{PROGRAM_FOLDER}", "RCCL_MSCCL_FORCE_ENABLE": "1"},
    disabling={"RCCL_MSCCL_ENABLE": "0"},
    subsystems="INIT,COLL",
    loaded=r"(Using MSCCL files from|MSCCL: Initialization finished)",
    scheduled=r"MSCCL: .*Setup Kernel finished",
    library="librccl.so",
    threadblocks=64,
    needs_channels=True,
)
RUNTIMES: Mapping[str, Runtime] = {runtime.name: runtime for runtime in (MSCCL, EXECUTOR, RCCL)}


LAST_ROCM = (7, 12)
"""Last ROCm version whose RCCL executes programs; rocm-systems#4340 removed MSCCL from the next version."""


def rocm_fault(runtime: str | None, folder: str | None = None) -> str | None:
    """Return a one-line reason why RCCL in the ROCm `folder` (default: ROCM_PATH) executes no programs.

    Returns None if it may execute them, if no ROCm is installed, or if `runtime` is not RCCL.
    """
    if runtime != RCCL.name:
        return None
    try:
        text = (Path(folder or os.environ.get("ROCM_PATH", "/opt/rocm")) / ".info" / "version").read_text()
    except OSError:
        return None
    numbers = re.match(r"(\d+)\.(\d+)", text)
    if numbers is None or (int(numbers[1]), int(numbers[2])) <= LAST_ROCM:
        return None
    return (
        f"RCCL of ROCm {text.strip()} executes no programs: MSCCL was removed after ROCm 7.12, and its functions do "
        "nothing; tune RCCL itself with the nccl runner"
    )


def require_runtime(name: str) -> Runtime:
    """Return the runtime `name`. Raises InvalidInput if there is none."""
    if name not in RUNTIMES:
        raise unknown_name("runtime", name, RUNTIMES)
    return RUNTIMES[name]


def runtime_for(name: str | None, program: Program) -> Runtime:
    """Return the runtime called `name`; if `name` is None, the first one that executes programs of `program`'s target.

    Raises InvalidInput for an unknown name, for a program with another target, and for a program with more thread
    blocks per rank than the runtime supports.
    """
    fitting = [each for each in RUNTIMES.values() if each.target == program.target]
    runtime = require_runtime(name) if name is not None else next(iter(fitting), None)
    if runtime is None or runtime not in fitting:
        title = "a runtime for GPUs" if runtime is None else runtime.title
        targets = sorted({each.target for each in RUNTIMES.values() if runtime in (None, each)})
        way_out = f"lower it with --target {' or '.join(targets)}"
        raise InvalidInput(f"{title} must be given a program of its dialect", program.target, way_out)
    blocks, most = max((len(rank.blocks) for rank in program.ranks), default=0), runtime.threadblocks
    if most is not None and blocks > most:
        rule = f"{runtime.title} must not be given more than {most} thread blocks of a rank"
        raise InvalidInput(rule, blocks, f"lower it again with --sm-count {most}, or with fewer channels or instances")
    return runtime


DTYPES: Mapping[str, str] = {
    "float32": "float",
    "float64": "double",
    "float16": "half",
    "bfloat16": "bfloat16",
    "int32": "int32",
    "int64": "int64",
}
"""Element type -> its name in the test programs."""

_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass(frozen=True, slots=True)
class JobOptions:
    """Says where and how a job runs a program. By default, it runs on one node with a GPU for each rank.

    sizes_bytes:    sizes of the whole vector, as the test programs count them
    dtype:          element type, see `DTYPES`
    runtime:        name of a runtime in `RUNTIMES`; None for the runtime of the program's target
    launcher:       command that starts one process per GPU
    hosts:          node names in the order of their ranks; empty for the current node or allocation
    gpus_per_node:  number of GPUs to use on each node; None for the number of ranks divided by the number of `hosts`
    tests_folder:   absolute path of the test programs' folder; None if they are on the PATH
    library_folder: absolute path of the runtime library's folder; None if the loader finds it
    batch_options:  additional sbatch options in the batch script, such as `--partition=gpu`
    batch_prologue: script lines before the launches, such as `module load`
    """

    sizes_bytes: tuple[int, ...]
    dtype: str = "float32"
    runtime: str | None = None
    launcher: Literal["openmpi", "srun"] = "openmpi"
    hosts: tuple[str, ...] = ()
    gpus_per_node: int | None = None
    tests_folder: str | None = None
    library_folder: str | None = None
    batch_options: tuple[str, ...] = ()
    batch_prologue: tuple[str, ...] = ()

    @property
    def element_bytes(self) -> int:
        return ELEMENT_TYPES[self.dtype].dtype.itemsize

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise InvalidInput("unknown element type of a job: {}", self.dtype, f"choose from {', '.join(DTYPES)}")
        if not self.sizes_bytes or min(self.sizes_bytes) < 1:
            raise InvalidInput("a job needs at least one size above zero", self.sizes_bytes, "add a size")
        if self.gpus_per_node is not None and self.gpus_per_node < 1:
            raise InvalidInput("gpus_per_node must be above zero", self.gpus_per_node, "choose more")
        for host in self.hosts:
            if not _HOST.fullmatch(host):
                raise InvalidInput("'{}' is not the name or address of a host", host, "write names without ports")
        for folder in (self.tests_folder, self.library_folder):
            if folder is not None and not folder.startswith("/"):
                raise InvalidInput(
                    "the folder {} is relative", folder, "write an absolute path, because nodes start in other folders"
                )


def served_size(size_bytes: int, element_bytes: int, programs: Iterable[Program]) -> int:
    """Return the smallest size >= `size_bytes` at which all `programs` (for the same collective) can run.

    Chunks must consist of whole elements, otherwise the runtime silently uses its own algorithm. For sharded
    collectives, RCCL also requires that each rank's shard can be divided into as many chunks as the program's vector.
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
    """Return a one-line reason why a runtime would use its own algorithm at this size, or None if it would not."""
    if size_bytes != served_size(size_bytes, element_bytes, [program]):
        return f"its elements cannot be cut into {program.chunks} chunks"
    most = program.max_bytes or target_named(program.target).limits.largest_max_bytes
    if size_bytes < program.min_bytes or (most is not None and size_bytes > most):
        return f"it is for {program.min_bytes} to {'any number of' if most is None else most} bytes"
    if program.in_place and program.collective.name is CollectiveName.ALLTOALL:
        return "calls of alltoall are never in place, but the program needs that"
    return None


def size_progressions(sizes_bytes: Sequence[int]) -> list[tuple[tuple[int, ...], int]]:
    """Split `sizes_bytes` greedily into a few geometric series, one for each test command.

    Returns (series, factor) pairs, sorted by the smallest size. Each size in a series is factor times the previous one.
    """
    remaining = sorted(set(sizes_bytes))
    found = []
    while remaining:
        candidates = []
        for factor in [size // remaining[0] for size in remaining[1:] if size % remaining[0] == 0] or [2]:
            series = [remaining[0]]
            while series[-1] * factor in remaining:
                series.append(series[-1] * factor)
            candidates.append((tuple(series), factor if len(series) > 1 else 2))
        found.append(max(candidates, key=lambda each: len(each[0])))
        remaining = [size for size in remaining if size not in found[-1][0]]
    return found


TEST_PROGRAMS: Mapping[CollectiveName, str] = {
    CollectiveName.ALLREDUCE: "all_reduce_perf",
    CollectiveName.ALLGATHER: "all_gather_perf",
    CollectiveName.REDUCE_SCATTER: "reduce_scatter_perf",
    CollectiveName.BROADCAST: "broadcast_perf",
    CollectiveName.REDUCE: "reduce_perf",
    CollectiveName.ALLTOALL: "alltoall_perf",
}

ITERATIONS, WARM_UP, PROOF_ITERATIONS = 50, 20, 2
"""For each size and placement: numbers of timed calls, of untimed calls before them, and of timed calls in a proof. A
proof is a run with a log, which shows that the program ran."""


def perf_command(program: Program, options: JobOptions, sizes_bytes: Sequence[int], factor: int) -> list[str]:
    """Return one rank's test command, without the options `-n` and `-w`. The command uses one GPU, checks results once
    and prints the mean time over all ranks.
    """
    collective = program.collective
    name = TEST_PROGRAMS[collective.name]
    command = [name if options.tests_folder is None else f"{options.tests_folder}/{name}"]
    command += ["-b", str(sizes_bytes[0]), "-e", str(sizes_bytes[-1]), "-f", str(factor)]
    command += ["-d", DTYPES[options.dtype]]
    if collective.reduces:
        command += ["-o", "sum"]
    if collective.is_rooted:
        command += ["-r", str(collective.root or 0)]
    return [*command, "-g", "1", "-c", "1", "-a", "1"]


Mode = Literal["program", "proof", "library"]
"""What a launch times. `program`: the program. `proof`: the program with a log, which shows whether it ran but slows it
down. `library`: the library's own algorithms."""
MODES: tuple[Mode, ...] = get_args(Mode)

LIBRARY_PATH_SUFFIX = "${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
"""Shell text that, after a library's folder, appends the previous value of LD_LIBRARY_PATH, if there is one."""


def mode_environment(program: Program, runtime: Runtime, options: JobOptions, mode: Mode) -> dict[str, str]:
    """Return the environment variables of a launch in `mode`; values may contain `JOB`, `PART`, `LIBRARY_PATH_SUFFIX`.

    The number of channels is only set for programs. The library's own algorithms keep its default.
    """
    variables = dict(runtime.disabling)
    if mode != "library":
        variables = {**runtime.enabling, **program_settings(program, runtime, None)}
    if mode == "proof":
        variables |= {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": runtime.subsystems}
    else:
        variables["NCCL_DEBUG"] = "WARN"
    # Each process logs to its own file, so that no log lines interrupt the table on standard output.
    variables["NCCL_DEBUG_FILE"] = f"{JOB}/logs/{mode}.{PART}.%h.%p.txt"
    if options.library_folder is not None:
        variables["LD_LIBRARY_PATH"] = options.library_folder + LIBRARY_PATH_SUFFIX
    return variables


def program_settings(program: Program, runtime: Runtime, buffer_bytes: int | None) -> dict[str, str]:
    """Return the environment variables that a program needs in addition to `runtime.enabling`.

    buffer_bytes: size of each connection's buffer; None for the runtime's default
    """
    settings = {}
    if buffer_bytes is not None:
        settings[BUFFER_VARIABLES[program.protocol]] = str(buffer_bytes)
    if runtime.needs_channels:
        settings["NCCL_MIN_NCHANNELS"] = str(program.channels)
    if runtime is MSCCL and program.protocol == "LL128":
        settings["NCCL_PROTO"] = "Simple,LL,LL128"  # on some GPUs, LL128 is only used if it is named here
    return settings
