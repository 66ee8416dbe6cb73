"""Check a table at the start of an MPI job; the preloaded library runs this module in a Python process."""

import hashlib
import sys
from pathlib import Path

from chorale.job.files import read_file
from chorale.job.settings import job_table
from chorale.job.table.layout import MAX_TABLE_BYTES
from chorale.synth.errors import ChoraleError


def main() -> int:
    """Check the table file (first argument) against its digest (second argument). Print its content and return 0, or
    print the reason for refusing it and return 1.
    """
    path, digest = sys.argv[1:]
    try:
        _, seen = job_table(Path(path))
        data = read_file(path, MAX_TABLE_BYTES)
    except ChoraleError as error:
        sys.stdout.write(str(error))
        return 1
    if seen != digest or hashlib.sha256(data.split(b"\n", 2)[2]).hexdigest() != digest:
        sys.stdout.write("the tuning table changed while the job started; start it again")
        return 1
    sys.stdout.buffer.write(data)
    return 0
