"""Where and how a program is run on GPUs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from chorale.runners.api.elements import ELEMENT_TYPES
from chorale.synth.errors import InvalidInput
from chorale.synth.topology.topology import Topology


def gpus_per_machine(topology: Topology) -> int | None:
    """Return how many ranks share a box where the ids of nodes say so (`BOX.GPU`, boxes alike), else None."""
    boxes = Counter(name.rpartition(".")[0] for name in topology.node_ids[: topology.compute_count])
    sizes = set(boxes.values())
    return sizes.pop() if len(sizes) == 1 and "" not in boxes else None


Launcher = Literal["openmpi", "mpich", "srun"]
"""Open MPI's mpirun, the mpiexec of MPICH and its kin, or Slurm."""

DTYPES: Mapping[str, str] = {
    "float32": "float",
    "float64": "double",
    "float16": "half",
    "bfloat16": "bfloat16",
    "int32": "int32",
    "int64": "int64",
}
"""Element types as the test programs call them."""

_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_MPI_TYPE = re.compile(r"[a-z][a-z0-9_]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class JobOptions:
    """Where and how a program is run; the defaults are one node with a GPU for each rank.

    sizes_bytes:    of the whole vector, as the test programs count it
    dtype:          of the elements, see `DTYPES`
    runtime:        name of a runtime, see `chorale.runners.msccl.runtimes`; None for the one of the program's target
    launcher:       what starts one process per GPU
    hosts:          names of the nodes in the order of their ranks; none for the node (or allocation) it is started in
    gpus_per_node:  None for as many as there are ranks on each of `hosts`
    tests_folder:   absolute folder of all_reduce_perf and the others, None where they are on the PATH
    library_folder: absolute folder of the runtime's library, None where the loader finds it anyway
    buffer_bytes:   of the buffer of each connection (NCCL_BUFFSIZE), None for what the runtime takes
    pinned:         algorithms of the library that the job can be launched with besides, see `PINNED_ALGORITHMS`
    iterations, warmup: calls that a test program times and does before, for each size and placement
    environment:    further variables of every process, such as NCCL_SOCKET_IFNAME
    mpi:            kind of MPI that srun sets up (`srun --mpi=list`), None for one that the test programs take
    batch_options:  further options of sbatch in the batch script, such as `--partition=gpu`
    batch_prologue: lines of it that come before the launches, such as `module load`
    """

    sizes_bytes: tuple[int, ...]
    dtype: str = "float32"
    runtime: str | None = None
    launcher: Launcher = "openmpi"
    hosts: tuple[str, ...] = ()
    gpus_per_node: int | None = None
    tests_folder: str | None = None
    library_folder: str | None = None
    buffer_bytes: int | None = None
    pinned: tuple[str, ...] = ()
    iterations: int = 50
    warmup: int = 20
    environment: Mapping[str, str] = field(default_factory=dict)
    mpi: str | None = None
    batch_options: tuple[str, ...] = ()
    batch_prologue: tuple[str, ...] = ()

    @property
    def element_bytes(self) -> int:
        return ELEMENT_TYPES[self.dtype].dtype.itemsize

    def __post_init__(self) -> None:
        _one_of("launcher", self.launcher, get_args(Launcher))
        _one_of("element type", self.dtype, tuple(DTYPES))
        if not self.sizes_bytes or min(self.sizes_bytes) < 1:
            raise InvalidInput("a job needs at least one size above zero", self.sizes_bytes, "add a size")
        numbers = {
            "iterations": self.iterations,
            "gpus_per_node": self.gpus_per_node,
            "buffer_bytes": self.buffer_bytes,
        }
        for name, number in numbers.items():
            if number is not None and number < 1:
                raise InvalidInput(f"{name} must be above zero", number, "choose more")
        for host in self.hosts:
            if not _HOST.fullmatch(host):
                raise InvalidInput("a host must be the name or address of a node", host, "write names without ports")
        for folder in (self.tests_folder, self.library_folder):
            if folder is not None and not folder.startswith("/"):
                raise InvalidInput("folders of a job must be absolute", folder, "every node looks from elsewhere")
        self._check_words()

    def _check_words(self) -> None:
        if self.mpi is not None and not _MPI_TYPE.fullmatch(self.mpi):
            raise InvalidInput("a kind of MPI must be one that srun has", self.mpi, "see `srun --mpi=list`")
        for name, value in self.environment.items():
            if not _VARIABLE.fullmatch(name) or not value.isprintable():
                raise InvalidInput(
                    "a variable must have a plain name and a printable value", f"{name}={value}", "correct it"
                )


def _one_of(what: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise InvalidInput(f"the {what} of a job must be one that is known", value, f"choose from {', '.join(known)}")
