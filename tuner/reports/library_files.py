"""Writes files for NCCL and RCCL tuner plug-ins, which select one of the library's own algorithms at each size.

A table entry corresponds to one of the library's algorithms in three cases: it consists of library settings; its
program was made by a method that the library also has; or the library itself was the best, as a baseline
`library:NAME`, in which the last word of NAME is the algorithm. Other entries are left out. The library chooses the
number of channels unless an entry with settings or with measurements of the runner nccl states it. A row must name a
protocol, so it names Simple if the entry states none.

A row of the file (`NCCL_TUNER_CONFIG_FILE` of Chorale's plug-in and of NCCL's example) is
`collective,min_bytes,max_bytes,algorithm,protocol,channels,nodes,ranks,pipe_ops,registered`. The first row that matches
a call decides; both bounds are inclusive, -1 matches anything, and sizes are sizes of the complete vector.
For Chorale's plug-in an eleventh field contains the chunk size. Settings that do not fit into a row are written as
environment variables (`nccl_variables`) or as the configuration of a call (`nccl_call_configs`). NCCL's example plug-in
silently replaces unknown names with defaults (allreduce, ring, simple) and uses one channel for calls that match no
row. There are no rows for sizes outside the measured range.
"""

import math
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, get_args

from chorale.job.table.layout import ANY_DTYPE, JobEntry, Table
from chorale.runners.api.base import LIBRARY
from chorale.runners.api.registry import is_simulated
from chorale.runners.nccl import parameters as nccl
from chorale.runners.nccl.config import NcclConfig
from chorale.synth.collective import CollectiveName
from chorale.synth.errors import CheckFailed, InvalidInput
from chorale.synth.programs.library_call import LibrarySettings
from chorale.synth.programs.program import Protocol

METHODS = {"ring": "ring", "double-binary-tree": "tree"}
"""Chorale method -> equivalent NCCL algorithm."""


@dataclass(frozen=True, slots=True)
class NcclChoice:
    """Library settings for a range of vector sizes, from min_bytes to max_bytes (None: no limit) inclusive.

    is_measured: whether the table's entry was measured on hardware, and not simulated, predicted or given by the user
    """

    collective: str
    min_bytes: int
    max_bytes: int | None
    settings: LibrarySettings
    is_measured: bool


def settings_by_size(table: Table, dtype: str | None = None) -> list[NcclChoice]:
    """Return the NCCL or RCCL settings of the entries for all ranks in `table`, sorted by collective and size.

    dtype: element type of the entries to use; default: the table's only type or, with several, the type `any`

    Raises InvalidInput if a type must be chosen, and CheckFailed if no entry corresponds to an algorithm of NCCL.
    """
    entries = [entry for entry in table.entries if entry.group is None and entry.collective in nccl.COLLECTIVES]
    types = sorted({entry.dtype for entry in entries})
    if dtype is None and len(types) > 1 and ANY_DTYPE not in types:
        rule = "libraries ignore element types, but the table has {}"
        raise InvalidInput(rule, f"entries for {', '.join(types)}", "choose one of them with --dtype")
    if dtype is None:
        dtype = types[0] if len(types) == 1 else ANY_DTYPE
    choices = []
    for entry in entries:
        settings = _settings_of(table, entry) if entry.dtype == dtype else None
        if settings is not None and nccl.settings_fault(CollectiveName(entry.collective), settings) is None:
            is_measured = entry.measured is not None and not is_simulated(entry.measured.get("runner"))
            choices.append(NcclChoice(entry.collective, entry.min_bytes, entry.max_bytes, settings, is_measured))
    if not choices:
        rule = "no entry of the table names an algorithm of NCCL"
        raise CheckFailed(rule, "", "tune with methods such as nccl:ring and nccl:tree")
    return sorted(choices, key=lambda choice: (choice.collective, choice.min_bytes))


def _settings_of(table: Table, entry: JobEntry) -> LibrarySettings | None:
    if entry.settings is not None:
        return LibrarySettings.from_json(entry.settings)
    baseline = str(entry.provenance.get("baseline", ""))
    protocol: Protocol | None = None
    channels: int | None = None
    if entry.program is not None:
        program = table.programs[entry.program]
        name, stated = program.method, program.parameters.get("protocol")
        # In measurements of other runners, channels and protocol describe the other runtime, not NCCL
        by_nccl = entry.measured is not None and entry.measured.get("runner") == NcclConfig.name
        if by_nccl and program.parameters:
            counts = [program.parameters.get(key) for key in ("channels", "instances")]
            channels = math.prod(count for count in counts if isinstance(count, int))
        if stated in get_args(Protocol) and (by_nccl or stated != "Simple"):
            protocol = stated
    else:
        if baseline.startswith(LIBRARY + nccl.PREFIX):
            with suppress(InvalidInput):
                return nccl.settings_named(baseline.removeprefix(LIBRARY))
        name = baseline.rpartition(":")[2] if baseline.startswith(LIBRARY) else baseline
    name = METHODS.get(name, name)
    return LibrarySettings(name, protocol, channels) if name in nccl.ALGORITHMS else None


def nccl_table_csv(table: Table, dtype: str | None = None, own_channels: int = 0) -> str:
    """Return `table` as a CSV file for NCCL or RCCL.

    own_channels: value that leaves the number of channels to the library: 0 for NCCL, -1 for RCCL. With -1, chunk
        sizes are left out, because RCCL has none.

    Raises the errors of `settings_by_size`, and CheckFailed if no settings can be expressed in rows.
    """
    rows = []
    for each in settings_by_size(table, dtype):
        settings = replace(each.settings, chunk_bytes=None) if own_channels < 0 else each.settings
        row = nccl.tuner_row(each.collective, settings, table.ranks, each.min_bytes, each.max_bytes, own_channels)
        rows += [] if row is None else [row]
    if not rows:
        value = "symmetric kernels, which run by themselves on registered windows"
        raise CheckFailed("the library's tuner cannot choose what the table says: {}", value, "tune other methods")
    return nccl.tuner_csv(rows)


def nccl_variables(table: Table, dtype: str | None = None) -> dict[str, str]:
    """Return the environment variables that every process of a job needs in addition to a table's rows.

    Raises InvalidInput if entries need different values, because a variable has only one value per process.
    """
    found: dict[str, str] = {}
    for each in settings_by_size(table, dtype):
        wanted = nccl.process_variables(each.settings)
        if each.settings.cta_policy is not None:
            wanted["NCCL_CTA_POLICY"] = str(nccl.CTA_POLICIES[each.settings.cta_policy])
        for name, value in wanted.items():
            if found.setdefault(name, value) != value:
                rule = f"all entries of a table must have the same {name}, which a process reads once"
                raise InvalidInput(rule, f"{found[name]} and {value}", "tune with one value only")
    return found


def nccl_call_configs(table: Table, dtype: str | None = None) -> list[dict[str, Any]]:
    """Return, for each range of sizes, the settings as fields of ncclCollConfig_t, which NCCL 2.31 or later reads."""
    configs = []
    for each in settings_by_size(table, dtype):
        document = {"collective": each.collective, "min_bytes": each.min_bytes, "max_bytes": each.max_bytes}
        configs.append(document | {"config": nccl.call_config(each.settings)})
    return configs


def aws_csv(table: Table, dtype: str | None = None, nodes: int = 1) -> str:
    """Return the allreduces of `table` in the format of aws-ofi-nccl's show-tuner-decisions.

    There is a row for each power of two in MiB. It contains `none` if the table leaves the choice to NCCL. The tuner of
    aws-ofi-nccl has built-in regions and cannot read files. This result is therefore only useful for comparison with
    the tuner's output.

    nodes: number of nodes on which the ranks run
    """
    choices = [each for each in settings_by_size(table, dtype) if each.collective == "allreduce"]
    lines = ["nodes,ranks,size,channels,algorithm,protocol"]
    for power in range(16):
        size_bytes = 2**20 << power
        fitting = [each for each in choices if each.min_bytes <= size_bytes <= (each.max_bytes or nccl.NO_LIMIT)]
        what = "0,none,none"
        if fitting:
            settings = fitting[0].settings
            name = settings.algorithm.replace("_", "")
            what = f"{settings.ctas or 0},{name},{(settings.protocol or 'none').lower()}"
        lines.append(f"{nodes},{table.ranks},{1 << power}MiB,{what}")
    return "\n".join(lines) + "\n"
