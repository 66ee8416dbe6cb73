"""The CSV of a tuning table for NCCL's example tuner plug-in (also of its v6 interface) and RCCL's built-in tuner.

Both read `NCCL_TUNER_CONFIG_FILE` with the same columns, see `nccl_tuner_csv`; RCCL leaves out lines with names that it
does not know. Its further columns, for partitions of a GPU, match anything where they are missing. Chunk sizes, which
tuners of v6 may choose, are not in the file.
"""

from __future__ import annotations

from chorale.job.table.model import Table
from chorale.tuner.reports.library_files.choices import builtin_choices
from chorale.tuner.reports.nccl_tuner_csv import ALGORITHMS, COLLECTIVES, HEADER

NO_LIMIT = 2**64 - 1
_OWN = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
NAMES = {collective: {**ALGORITHMS, **{name: name for name in _OWN}} for collective in COLLECTIVES}


def nccl_table_csv(table: Table, dtype: str | None = None) -> str:
    """Return the CSV of `table`; raises as `builtin_choices` does."""
    lines = [HEADER]
    for choice in builtin_choices(table, NAMES, dtype):
        last = NO_LIMIT if choice.max_bytes is None else choice.max_bytes
        what = f"{choice.algorithm},{choice.protocol.lower()},{choice.channels}"
        lines.append(f"{COLLECTIVES[choice.collective]},{choice.min_bytes},{last},{what},-1,{table.ranks},-1,-1")
    return "\n".join(lines) + "\n"
