"""What names of options there are, as the shell completes them, and what reads them: common spellings are taken.

The lists stand here so that completion imports nothing; tests compare them with the catalogs that they come from.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TypeVar

_METHODS = (
    "bfb ring biring expand forest forest-phases blink swing swing-latency hamiltonian-ring bfb-ring bucket "
    "traditional-torus recursive-doubling mirrored-recursive-doubling rabenseifner mirrored-rabenseifner "
    "double-binary-tree alltoall auto in-network"
)
METHODS = tuple(_METHODS.split())
COLLECTIVES = ("allgather", "reduce_scatter", "allreduce", "broadcast", "reduce", "alltoall")
RUNNERS = ("local", "simulated", "recorded", "oneccl", "mpi", "msccl")
TARGETS = ("msccl-executor-xml", "msccl-xml", "oneccl-xml", "mscclpp-json")
EXECUTORS = ("serial", "processes", "ray")
ELEMENT_TYPES = ("float32", "float64", "int32", "int64", "float16", "bfloat16")


_FileName = TypeVar("_FileName")


def collective_name(text: str) -> str:
    """Return the collective that `text` means, `all-reduce` and `AllReduce` too."""
    from chorale.synth.collective import parse_collective  # noqa: PLC0415 - not for the list of commands

    return parse_collective(text).name.value


def method_name(text: str) -> str:
    """Return the method that `text` means."""
    from chorale.synth.methods.catalog import method_named  # noqa: PLC0415 - as above

    return method_named(text).name


def runner_name(text: str) -> str:
    """Return the runner that `text` means."""
    from chorale.runners.api.registry import runner_named  # noqa: PLC0415 - as above

    return runner_named(text)


def target_name(text: str) -> str:
    """Return the target that `text` means."""
    from chorale.synth.targets.registry import target_named  # noqa: PLC0415 - as above

    return target_named(text).name


def executor_name(text: str) -> str:
    """Return the executor that `text` means."""
    from chorale.synth.names import name_among  # noqa: PLC0415 - as above

    return name_among("executor", text, EXECUTORS)


def element_type(text: str) -> str:
    """Return the element type that `text` means."""
    from chorale.synth.names import name_among  # noqa: PLC0415 - as above

    aliases = {"fp32": "float32", "fp64": "float64", "double": "float64", "half": "float16", "fp16": "float16"}
    return name_among("element type", text, ELEMENT_TYPES, aliases | {"bf16": "bfloat16", "float": "float32"})


def campaign_name(text: str) -> str:
    """Return the name of a campaign as it is: what reads it says whether there is such a campaign."""
    return text


CHOICES: Mapping[Callable[[str], str], tuple[str, tuple[str, ...]]] = {
    method_name: ("method", METHODS),
    collective_name: ("collective", COLLECTIVES),
    runner_name: ("runner", RUNNERS),
    target_name: ("target", TARGETS),
    executor_name: ("executor", EXECUTORS),
    element_type: ("element type", ELEMENT_TYPES),
}
"""What reads a name -> what it is the name of, and the names."""


def file_to_write(path: _FileName) -> _FileName:
    """Return the name of a file that is written at the end, once its folder is known to exist: before slow work."""
    if path is None:
        return path
    folder = os.path.dirname(str(path))
    if folder and not os.path.isdir(folder):
        from chorale.synth.errors import InvalidInput  # noqa: PLC0415 - as above

        raise InvalidInput("the folder of an output file must exist", folder, "create it first")
    return path
