"""The NCCL tuner plug-in that applies the rows written by `chorale table export --for nccl` or `tune --programs`.

    NCCL_TUNER_PLUGIN=$(python -P -m chorale.job.nccl.plugin) NCCL_TUNER_CONFIG_FILE=tuner.csv ...

The wheel contains the plug-in; without a wheel, it is built at first use, which needs neither CUDA nor NCCL's sources.
NCCL's example plug-in reads the same file. But the example of NCCL 2.29.7 ends the process at the first matching row,
and the examples of later versions use a single channel for all calls without a row.

With CHORALE_TUNER_REPORT=FILE, a job records to which calls each row was applied, and what NCCL would have chosen
without the row; `python -P -m chorale.job.nccl.plugin FILE` prints this report.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chorale.job.files import read_file
from chorale.runners.nccl.plugin import tuner_plugin
from chorale.synth.errors import ChoraleError, InvalidInput, fault_in

REPORT_FORMAT = "chorale-tuner/1"
_KEY = ("collective", "min_bytes", "max_bytes", "algorithm", "protocol", "channels")
_SUMS = ("calls", "bytes", "refused", "chunks", "cost_us")


def applied_rows(path: Path) -> list[dict[str, Any]]:
    """Return how each row of the tuner file was applied, summed over the processes that wrote the report at `path`.

    calls, bytes: number of calls to which the row was applied, and their total size
    refused: number of calls for which NCCL lacks the row's combination of algorithm and protocol
    cost_us: time in us that NCCL estimates for the row's choice
    own:     NCCL's choice without the row, and its estimated time (None before NCCL 2.22)

    Raises InvalidInput if the file is not a report of the plug-in.
    """
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    try:
        for line in read_file(path, 2**24).splitlines():
            document = json.loads(line)
            if document["format"] != REPORT_FORMAT:
                raise ValueError(f"its format is {document['format']!r}")
            for row in document["rows"]:
                key = tuple(row[name] for name in _KEY)
                total = rows.setdefault(
                    key, {**dict(zip(_KEY, key, strict=True)), **dict.fromkeys(_SUMS, 0), "own": None}
                )
                for name in _SUMS:
                    total[name] += row[name]
                if row["own"] is not None:
                    spent = 0.0 if total["own"] is None else total["own"]["cost_us"]
                    total["own"] = row["own"] | {"cost_us": spent + row["own"]["cost_us"]}
    except (KeyError, TypeError, ValueError) as error:
        rule = f"a report of the tuner must have the {REPORT_FORMAT} format"
        raise InvalidInput(rule, f"{path}: {fault_in(error)}", "run the job again") from error
    return list(rows.values())


def main(arguments: Sequence[str] = ()) -> int:
    """Print the plug-in's path or, if `arguments` contains the path of a report, how each row was applied."""
    try:
        lines = [] if arguments else [str(tuner_plugin())]
        for row in applied_rows(Path(arguments[0])) if arguments else ():
            last = f"{row['max_bytes']} B" if row["max_bytes"] < 2**63 else "any size"
            what = f"{row['collective']} {row['min_bytes']} to {last}: {row['algorithm']}/{row['protocol']}"
            said = f"{row['calls']} calls" if row["calls"] else "not applied"
            if row["refused"]:
                said += f", {row['refused']} refused"
            if (own := row["own"]) is not None:
                share = f"{row['cost_us']:.0f} us by NCCL's estimate"
                said += f", {share}, {own['cost_us']:.0f} us by its own {own['algorithm']}/{own['protocol']}"
            lines.append(f"{what}: {said}")
    except ChoraleError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    sys.stdout.writelines(f"{line}\n" for line in lines)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
