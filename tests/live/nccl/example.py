"""A table for four ranks, as CSV for NCCL's tuner plug-in. `python -m tests.live.nccl.example` prints it."""

import sys

from chorale.job.table.model import ANY_DTYPE, JobEntry, Table, TableProgram
from chorale.tuner.reports.library_files import nccl_table_csv
from tests.live.nccl.tuner import RANKS


def example_table() -> Table:
    """Return a table with trees for small and rings for large vectors, as a campaign on four ranks ends with it."""
    programs = {
        name: TableProgram(name, "msccl-xml", method, parameters, "allreduce", None, RANKS, b"", ())
        for name, method, parameters in (
            ("tree", "double-binary-tree", {"channels": 1, "instances": 2, "protocol": "LL"}),
            ("ring", "ring", {"channels": 1, "instances": 1, "protocol": "Simple"}),
            ("rings", "ring", {"channels": 2, "instances": 1, "protocol": "LL"}),
        )
    }
    entries = (
        JobEntry("allreduce", ANY_DTYPE, None, None, 1024, 65536, "tree"),
        JobEntry("allreduce", ANY_DTYPE, None, None, 65537, 1 << 20, "rings"),
        JobEntry("allgather", ANY_DTYPE, None, None, 0, 65536, "rings"),
        JobEntry("allgather", ANY_DTYPE, None, None, 65537, None, "ring"),
        JobEntry("reduce_scatter", ANY_DTYPE, None, None, 0, None, None, provenance={"baseline": "library:nccl:ring"}),
        JobEntry("broadcast", ANY_DTYPE, None, 0, 0, None, "tree"),
    )
    return Table({"spec": "complete:4"}, RANKS, entries, programs)


def example_csv() -> str:
    """Return the table as Chorale exports it."""
    return nccl_table_csv(example_table())


if __name__ == "__main__":
    sys.stdout.write(example_csv())
