"""Single faults in the middle of a launch: when each is noticed, and when work goes on.

`python -m tests.integration.faults` prints a table; `--only NAME` (any part of names) chooses. Each row is a launch of
its own; `lost` and `doubled` compare the trials of the journal with those that were asked for, and with MLflow's runs.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from tests.integration.faults.catalog import FAULTS
from tests.integration.faults.rows import HEADER, run_fault


def main(only: list[str] | None, verbose: bool) -> int:
    sys.stdout.write(f"{HEADER}\n")
    bad = 0
    for name, fault in FAULTS.items():
        if only and not any(part in name for part in only):
            continue
        with tempfile.TemporaryDirectory(prefix="chorale-faults-", ignore_cleanup_errors=True) as folder:
            row = run_fault(name, fault, Path(folder), verbose)
        bad += not row.good
        sys.stdout.write(f"{row.line}\n")
        sys.stdout.flush()
    return bad


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", action="append")
    parser.add_argument("--verbose", action="store_true", help="Show what launches say after the fault.")
    given = parser.parse_args()
    raise SystemExit(main(given.only, given.verbose))
