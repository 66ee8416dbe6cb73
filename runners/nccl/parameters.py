"""Defines parameters of NCCL and RCCL: the versions that have them, and how to set them.

There are four ways to apply a setting: a row for the tuner plug-in, a communicator's configuration, a call's
configuration, and an environment variable, which the library reads once per process. The sources are named in
`docs/reference/nccl-parameters.md`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from chorale.runners.process_launch.slurm import BUFFER_VARIABLES
from chorale.synth.collective import CollectiveName
from chorale.synth.errors import InvalidInput
from chorale.synth.programs.library_call import LibrarySettings
from chorale.synth.programs.program import Protocol

PROGRAM_FOLDER, PROGRAM = "algorithms", "program.xml"
"""Names of the folder and file with the program for an MSCCL XML runtime, which may crash if the folder contains other
files."""

Version = tuple[int, int]
"""Major and minor NCCL version; RCCL reports the version of NCCL on which it is based."""

PREFIX = "nccl:"
"""Prefix of campaign methods that are the library's own algorithms, such as `nccl:ring` and `nccl:ring:LL`."""
DEFAULT = "nccl"
"""Name for calls in which the library chooses the algorithm."""

_PROTOCOLS: tuple[Protocol, ...] = ("LL", "LL128", "Simple")


@dataclass(frozen=True, slots=True)
class NcclAlgorithm:
    """An algorithm of NCCL or RCCL.

    name:        name in tuner files
    since:       first NCCL version that has the algorithm
    collectives: collectives that can use it
    protocols:   protocols that it supports
    of_rccl:     whether RCCL documents it
    """

    name: str
    since: Version
    collectives: frozenset[CollectiveName]
    protocols: tuple[Protocol, ...]
    of_rccl: bool


_C = CollectiveName
_SHARDED = frozenset({_C.ALLGATHER, _C.REDUCE_SCATTER})
_EACH = frozenset({_C.ALLREDUCE, _C.BROADCAST, _C.REDUCE}) | _SHARDED
_SUMS = frozenset({_C.ALLREDUCE}) | _SHARDED
_ALLREDUCE = frozenset({_C.ALLREDUCE})
_SIMPLE: tuple[Protocol, ...] = ("Simple",)
ALGORITHMS: Mapping[str, NcclAlgorithm] = {
    each.name: each
    for each in (  # in the order of NCCL's numbers
        NcclAlgorithm("tree", (2, 4), _ALLREDUCE, _PROTOCOLS, True),
        NcclAlgorithm("ring", (2, 0), _EACH, _PROTOCOLS, True),
        NcclAlgorithm("collnet_direct", (2, 14), _SUMS, _SIMPLE, False),
        NcclAlgorithm("collnet_chain", (2, 14), _ALLREDUCE, _SIMPLE, False),
        NcclAlgorithm("nvls", (2, 17), _SUMS, _SIMPLE, False),
        NcclAlgorithm("nvls_tree", (2, 18), _ALLREDUCE, _SIMPLE, False),
        NcclAlgorithm("pat", (2, 23), _SHARDED, _SIMPLE, False),
    )
}
SYMMETRIC = "symmetric"
"""Name that stands for all kernels on symmetric memory (registered windows). The library chooses one of them."""


PARAMETERS_SINCE: Mapping[str, Version] = {
    "protocol": (2, 5),
    "ctas": (2, 17),
    "chunk_bytes": (2, 30),
    "cta_policy": (2, 27),
    "buffer_bytes": (2, 0),
    "threads": (2, 0),
}
"""Setting other than the algorithm -> first version of NCCL that has it."""
SYMMETRIC_SINCE: Version = (2, 27)
CALL_CONFIG_SINCE: Version = (2, 31)
CTA_POLICIES = {"default": 0, "efficiency": 1, "zero": 2}
THREADS = (64, 128, 256, 512)
MOST_CTAS, MOST_CTAS_OF_RCCL = 64, 256


def is_library_method(method: str) -> bool:
    """Return whether the campaign method `method` is one of the library's own algorithms."""
    return method.startswith(PREFIX)


def settings_named(name: str) -> LibrarySettings | None:
    """Return the settings for a name such as `nccl:ring` or `nccl:ring:LL`, or None if the name is `DEFAULT`.

    A name without a protocol means Simple, which all algorithms support. Raises InvalidInput for other names.
    """
    if name == DEFAULT:
        return None
    algorithm, _, protocol = name.removeprefix(PREFIX).partition(":")
    if not name.startswith(PREFIX) or algorithm not in (*ALGORITHMS, SYMMETRIC) or protocol not in ("", *_PROTOCOLS):
        known = ", ".join(PREFIX + each for each in (*ALGORITHMS, SYMMETRIC))
        raise InvalidInput("NCCL has no algorithm '{}'", name, f"use {known}, with :LL or :LL128")
    return LibrarySettings(algorithm, None if algorithm == SYMMETRIC else protocol or "Simple")


def library_names(collective: str) -> tuple[str, ...]:
    """Return the names of the library's algorithms for `collective`, starting with `DEFAULT`."""
    fitting = [each for each in ALGORITHMS.values() if collective in each.collectives]
    return (DEFAULT, *(f"{PREFIX}{each.name}:{protocol}" for each in fitting for protocol in each.protocols))


def settings_fault(
    collective: CollectiveName, settings: LibrarySettings, version: Version | None = None, is_rccl: bool = False
) -> str | None:
    """Return a one-line reason why `collective` cannot run with `settings`; None if it can.

    version: library version; None if it is unknown
    """
    return next(_faults(collective, settings, version, is_rccl), None)


def _faults(
    collective: CollectiveName, settings: LibrarySettings, version: Version | None, is_rccl: bool
) -> Iterator[str]:
    algorithm, name = ALGORITHMS.get(settings.algorithm), settings.algorithm
    if algorithm is None and name != SYMMETRIC:
        yield f"NCCL has no algorithm {name}"
    elif algorithm is not None:
        if collective not in algorithm.collectives:
            yield f"{name} has no {collective.value}"
        if settings.protocol is not None and settings.protocol not in algorithm.protocols:
            yield f"{name} runs with {' or '.join(algorithm.protocols)}, not with {settings.protocol}"
        if is_rccl and not algorithm.of_rccl:
            yield f"RCCL has no {name}"
    elif collective not in _SUMS or settings.protocol is not None:
        yield "symmetric kernels are for allreduce, allgather and reduce_scatter, and have no protocol"
    used = settings.to_json()
    since = {each: PARAMETERS_SINCE[each] for each in used if each in PARAMETERS_SINCE}
    since[name] = algorithm.since if algorithm else SYMMETRIC_SINCE
    for each, first in since.items():
        if version is not None and version < first:
            yield f"{each} needs NCCL {first[0]}.{first[1]}, this is {version[0]}.{version[1]}"
    library, most = ("RCCL", MOST_CTAS_OF_RCCL) if is_rccl else ("NCCL", MOST_CTAS)
    if settings.ctas is not None and settings.ctas > most:
        yield f"{library} has at most {most} CTAs, not {settings.ctas}"
    if settings.threads not in (None, *THREADS):
        yield f"threads must be one of {', '.join(map(str, THREADS))}, not {settings.threads}"
    if settings.cta_policy not in (None, *CTA_POLICIES):
        yield f"a CTA policy is one of {', '.join(CTA_POLICIES)}, not {settings.cta_policy}"
    if name == SYMMETRIC and (settings.chunk_bytes or settings.buffer_bytes):
        yield "symmetric kernels have neither chunks nor buffers"


def process_variables(settings: LibrarySettings | None) -> dict[str, str]:
    """Return the environment variables that a process needs from its start to apply `settings`; {} if it needs none."""
    if settings is None:
        return {}
    found = {}
    if settings.buffer_bytes is not None:
        found[BUFFER_VARIABLES[settings.protocol or "Simple"]] = str(settings.buffer_bytes)
    if settings.threads is not None:
        found["NCCL_NTHREADS"] = str(settings.threads)
    return found


def call_config(settings: LibrarySettings) -> dict[str, str | int]:
    """Return the fields of ncclCollConfig_t that configure a call with `settings`.

    `algSelection` has the names in NCCL's src/config/algorithm_registry.cc. A name selects all algorithms that begin
    with it, so a selection of LL excludes LL128 explicitly.
    """
    name = {"nvls_tree": "NVLSTREE", SYMMETRIC: "SYMK"}.get(settings.algorithm, settings.algorithm.upper())
    selection = name if settings.protocol is None else f"{name}_{settings.protocol.upper()}"
    fields = {
        "algSelection": f"{selection}+^{selection}128" if settings.protocol == "LL" else selection,
        "maxCTAs": settings.ctas,
        "CTAPolicy": CTA_POLICIES.get(settings.cta_policy or ""),
    }
    return {field: value for field, value in fields.items() if value is not None}


COLLECTIVES: Mapping[str, str] = {
    "allreduce": "allreduce",
    "allgather": "allgather",
    "reduce_scatter": "reducescatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
}
"""Collective -> its name in tuner files."""
NO_LIMIT = 2**64 - 1
HEADER = "# collective,min_bytes,max_bytes,algorithm,protocol,channels,nodes,ranks,pipe_ops,registered"


def tuner_row(
    collective: str,
    settings: LibrarySettings,
    ranks: int,
    first: int = 0,
    last: int | None = None,
    own_channels: int = 0,
) -> str | None:
    """Return the row of a tuner file that applies `settings` to vectors of `first` to `last` bytes (None: no limit).
    Return None for symmetric kernels and for collectives that the plug-in interface does not support.

    own_channels: value that leaves the number of channels to the library: 0 for NCCL, -1 for RCCL

    If `settings` contain a chunk size, the row has an eleventh field, which Chorale's plug-in reads.
    """
    if collective not in COLLECTIVES or settings.algorithm == SYMMETRIC:
        return None
    channels = own_channels if settings.ctas is None else settings.ctas
    what = f"{settings.algorithm},{(settings.protocol or 'Simple').lower()},{channels}"
    row = f"{COLLECTIVES[collective]},{first},{NO_LIMIT if last is None else last},{what},-1,{ranks},-1,-1"
    return row if settings.chunk_bytes is None else f"{row},{settings.chunk_bytes}"


def tuner_csv(rows: Sequence[str]) -> str:
    header = HEADER + (",chunk_bytes" if any(row.count(",") > HEADER.count(",") for row in rows) else "")
    return "\n".join([header, *rows]) + "\n"
