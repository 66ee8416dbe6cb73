"""Check a table at the start of an MPI job; the preloaded library runs this module in a Python process."""

import sys
from pathlib import Path

from chorale.job.settings import job_table
from chorale.job.table.layout import Table
from chorale.synth.errors import ChoraleError


def main() -> int:
    """Check the table file (first command-line argument), which must have the expected digest (second argument).

    If the table is valid, print its content for the ranks and return 0; otherwise print the reason and return 1.
    """
    path, digest = sys.argv[1:]
    try:
        table, seen = job_table(Path(path))
    except ChoraleError as error:
        sys.stdout.write(str(error))
        return 1
    if seen != digest:
        sys.stdout.write("the tuning table changed while the job started; start it again")
        return 1
    sys.stdout.buffer.write(content_for_ranks(table, digest))
    return 0


def content_for_ranks(table: Table, digest: str) -> bytes:
    """Return `table` in the format that native/table.cpp parses.

    The result starts with the digest and the number of ranks. For each program, a line `program` and each rank's
    encoded part (packed, see layout.py) follow. Then comes a line `entry` for each entry. In these lines, -1 stands for
    None; an entry whose program is a plan has -1 instead of the program's number.
    """
    parts, numbers = [f"{digest} {table.ranks}\n".encode()], {}
    for number, program in enumerate(table.programs.values()):
        numbers[program.digest] = -1 if program.is_plan else number
        parts.append(f"program {program.digest}\n".encode())
        for words in program.words:
            parts += [f"words {len(words)}\n".encode(), words, b"\n"]
    for entry in table.entries:
        root, most = (-1 if one is None else one for one in (entry.root, entry.max_bytes))
        number = -1 if entry.program is None else numbers[entry.program]
        columns = (entry.collective, entry.dtype, root, entry.min_bytes, most, number)
        group = entry.group or ()
        parts.append(f"entry {' '.join(map(str, (*columns, len(group), *group)))}\n".encode())
    return b"".join(parts)
