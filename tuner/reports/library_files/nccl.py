"""The CSV of a tuning table for tuner plug-ins of NCCL and for RCCL's built-in tuner.

Both read `NCCL_TUNER_CONFIG_FILE` with the same columns, see `nccl_tuner_csv`; RCCL leaves out lines with names that it
does not know. Its further columns, for partitions of a GPU, match anything where they are missing. Chunk sizes, which
tuners of v6 may choose, are not in the file. Where a table says nothing of channels, the library chooses: that is 0 for
NCCL, whose example plug-in makes one channel of -1, and -1 for RCCL, which warns of 0.
"""

from __future__ import annotations

from chorale.job.table.model import Table
from chorale.tuner.reports.library_files.choices import builtin_choices
from chorale.tuner.reports.nccl_tuner_csv import ALGORITHMS, COLLECTIVES, HEADER, RUNS

NO_LIMIT = 2**64 - 1
NAMES = {
    collective: {
        method: name for method, name in {**ALGORITHMS, **{name: name for name in runs}}.items() if name in runs
    }
    for collective, runs in RUNS.items()
}


def nccl_table_csv(table: Table, dtype: str | None = None) -> str:
    """Return the CSV of `table` for NCCL; raises as `builtin_choices` does."""
    return _csv(table, dtype, "0")


def rccl_table_csv(table: Table, dtype: str | None = None) -> str:
    """Return the CSV of `table` for RCCL; raises as `builtin_choices` does."""
    return _csv(table, dtype, "-1")


def _csv(table: Table, dtype: str | None, own_channels: str) -> str:
    lines = [HEADER]
    for choice in builtin_choices(table, NAMES, dtype):
        last = NO_LIMIT if choice.max_bytes is None else choice.max_bytes
        channels = own_channels if choice.channels < 0 else choice.channels
        what = f"{choice.algorithm},{choice.protocol.lower()},{channels}"
        lines.append(f"{COLLECTIVES[choice.collective]},{choice.min_bytes},{last},{what},-1,{table.ranks},-1,-1")
    return "\n".join(lines) + "\n"
