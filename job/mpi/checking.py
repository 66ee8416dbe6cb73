"""Check a table at the start of an MPI job; the preloaded library runs this module in a Python process."""

import sys
from pathlib import Path

from chorale.job.settings import job_table
from chorale.synth.errors import ChoraleError


def main() -> int:
    """Check the table file (first argument) against its digest (second argument). Return 0, or print the reason and
    return 1.
    """
    path, digest = sys.argv[1:]
    try:
        _, seen = job_table(Path(path))
    except ChoraleError as error:
        sys.stdout.write(str(error))
        return 1
    if seen != digest:
        sys.stdout.write("the tuning table changed while the job started; start it again")
        return 1
    return 0
