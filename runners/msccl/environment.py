"""What the processes of a job are told by their environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from chorale.runners.msccl.options import JobOptions
from chorale.runners.msccl.runtimes import JOB, MSCCL, PART, Runtime
from chorale.synth.programs.program import Program, Protocol

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
    """Return the variables of a mode; values may contain `runtimes.JOB`, `runtimes.PART` and `OTHER_LIBRARIES`.

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
