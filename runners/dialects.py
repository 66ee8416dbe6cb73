"""The dialect of programs that each runner executes."""

from __future__ import annotations

from runners.msccl.runtimes import MSCCL, known_runtime

CPU_DIALECT = "oneccl-xml"
"""What all runners without GPUs execute."""


def dialect_of(runner: str, runtime: str | None = None) -> str:
    """Return the target (see `synth.lowering.targets`) of programs for `runner`.

    runtime: of the msccl runner, None for the one that it takes by default; InvalidInput for one that is not known.
    """
    if runner != "msccl":
        return CPU_DIALECT
    return known_runtime(MSCCL.name if runtime is None else runtime).dialect
