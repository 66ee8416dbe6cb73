"""What ranks on one GPU are tried on: `python -m tests.live.job.gpu_cases CASE... [--device cpu]` prints what they say.

By the programs of a table and by the library; a line of JSON for each.
"""

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.live.job import gpu_streams, gpu_training, gpu_types
from tests.live.job.shared_gpu import LIBRARIES, Case, on_ranks

_FUNCTIONS = (
    *(gpu_streams.behind_a_stream, gpu_streams.several_at_once, gpu_streams.times),
    *(gpu_streams.graph, gpu_streams.graph_after_one, gpu_streams.graph_async),
    *(gpu_streams.graph_cold, gpu_streams.graph_behind, gpu_streams.stalled),
    *(gpu_types.types, gpu_types.gaps, gpu_training.ddp, gpu_training.fsdp),
)
CASES: Mapping[str, Case] = {case.__name__: case for case in _FUNCTIONS}


def by_programs(case: str, device: str, table: bytes | None = None) -> list[Mapping[str, Any]]:
    """Return what the ranks say of `case`, by the programs of `table`."""
    return on_ranks(CASES[case], device, "chorale", table)


def by_library(case: str, device: str, table: bytes | None = None) -> list[Mapping[str, Any]]:
    """Return what the ranks say of `case`, by the library."""
    return on_ranks(CASES[case], device, LIBRARIES[device], table)


def main() -> None:
    """Print what the cases say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="+", choices=sorted(CASES))
    parser.add_argument("--device", choices=sorted(LIBRARIES), default="cuda")
    parser.add_argument("--by", choices=("programs", "library", "both"), default="both")
    parser.add_argument("--table", type=Path, help="made elsewhere, by `python -m tests.live.job.torch.tables FILE`")
    given = parser.parse_args()
    table = given.table and given.table.read_bytes()
    ways = {"programs": by_programs, "library": by_library}
    for case in given.cases:
        for way, run in ways.items():
            if given.by in (way, "both"):
                sys.stdout.write(json.dumps({"case": case, "by": way, "ranks": run(case, given.device, table)}) + "\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
