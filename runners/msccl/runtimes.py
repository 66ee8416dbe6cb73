"""The runtimes that execute MSCCL programs: where each looks for them, how it is told to, and what it logs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from chorale.synth.errors import InvalidInput
from chorale.synth.names import unknown_name
from chorale.synth.programs.program import Program

JOB = "$CHORALE_JOB"
"""What the folder of a job is called in values of variables; the launch script sets it."""

PART = "$CHORALE_PART"
"""The number of the test program in a launch, in values of variables."""

STEP = "$CHORALE_STEP"
"""The name of the steps of Slurm that a launch starts."""

MPI_TYPE = "$CHORALE_MPI"
"""The kind of MPI that srun sets up for them."""

ALGORITHMS = "algorithms"
"""The folder with the program, and nothing else: a runtime that finds another file there may crash."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """A library with NCCL's interface that executes programs of one target.

    target:    name of the target, see `chorale.synth.targets.registry`
    enabling:  variables with which it executes the program of a job
    disabling: variables with which it uses its own algorithms only, if those of `enabling` are not set
    subsystems: of NCCL_DEBUG_SUBSYS, with which the log says whether it loaded and ran a program
    loaded, scheduled: regular expressions of what it then says: when a rank has taken programs, and whenever one of
               them executed a call (None where it says nothing of calls)
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
    threadblocks: int | None = None  # of a rank, where the runtime takes fewer than its target
    needs_channels: bool = False  # whether it must be told to have as many channels as a program


MSCCL = Runtime(
    name="msccl",
    title="MSCCL (microsoft/msccl)",
    target="msccl-xml",
    enabling={"MSCCL_XML_FILES": f"{JOB}/{ALGORITHMS}/program.xml", "NCCL_ALGO": "MSCCL,RING,TREE"},
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
    enabling={"MSCCL_ALGO_DIR": f"{JOB}/{ALGORITHMS}", "NCCL_MSCCL_ENABLE": "1"},
    disabling={"NCCL_MSCCL_ENABLE": "0"},
    subsystems="INIT",
    loaded="MSCCL: Initialization finished",
    scheduled=r"MSCCL: .*Setup Kernel finished",
    library="libnccl.so",
)
RCCL = Runtime(
    name="rccl",
    title="RCCL of ROCm up to 7.2",
    target="msccl-executor-xml",
    enabling={"MSCCL_ALGO_DIR": f"{JOB}/{ALGORITHMS}", "RCCL_MSCCL_FORCE_ENABLE": "1"},
    disabling={"RCCL_MSCCL_ENABLE": "0"},
    subsystems="INIT,COLL",
    loaded=r"(Using MSCCL files from|MSCCL: Initialization finished)",
    scheduled=r"MSCCL: .*Setup Kernel finished",
    library="librccl.so",
    threadblocks=64,
    needs_channels=True,
)
RUNTIMES: Mapping[str, Runtime] = {runtime.name: runtime for runtime in (MSCCL, EXECUTOR, RCCL)}


def require_runtime(name: str) -> Runtime:
    """Return the runtime called `name`; InvalidInput if there is none."""
    if name not in RUNTIMES:
        raise unknown_name("runtime", name, RUNTIMES)
    return RUNTIMES[name]


def runtime_for(name: str | None, program: Program) -> Runtime:
    """Return the runtime called `name`, by default the first that executes the target of `program`.

    Raises InvalidInput for an unknown name, for a program of another target, and for one with more thread blocks at a
    rank than the runtime takes.
    """
    fitting = [runtime for runtime in RUNTIMES.values() if runtime.target == program.target]
    if name is None and fitting:
        return _with_room(fitting[0], program)
    if name is None or require_runtime(name) not in fitting:
        targets = sorted({runtime.target for runtime in RUNTIMES.values() if name in (None, runtime.name)})
        rule = (
            f"{'a runtime for GPUs' if name is None else RUNTIMES[name].title} must be given a program of its dialect"
        )
        raise InvalidInput(rule, program.target, f"lower it with --target {' or '.join(targets)}")
    return _with_room(RUNTIMES[name], program)


def _with_room(runtime: Runtime, program: Program) -> Runtime:
    blocks, most = max((len(rank.blocks) for rank in program.ranks), default=0), runtime.threadblocks
    if most is not None and blocks > most:
        rule = f"{runtime.title} must not be given more than {most} thread blocks of a rank"
        raise InvalidInput(rule, blocks, f"lower it again with --sm-count {most}, or with fewer channels or instances")
    return runtime
