"""One rank of a job as a process: a GroupEngine that runs each program of a table some times on numbers of a seed.

    python -m tests.live.job.job_rank TABLE RANK RANKS

Its exchange is a line of JSON out and a line of JSON in. It ends with the digests of all results, as a line.
"""

import hashlib
import json
import sys
from pathlib import Path

import numpy as np

from chorale.job.group import GroupEngine
from chorale.job.settings import read_table
from chorale.runners.engine.library import Devices, Work

RUNS = 6


def contribution(rank: int, elements: int) -> np.ndarray:
    """Return what `rank` contributes: numbers of many magnitudes, so that orders of additions show."""
    rng = np.random.default_rng([rank, elements])
    return (rng.standard_normal(elements) * 10.0 ** rng.integers(-6, 7, elements)).astype(np.float32)


def exchange(texts: list[str]) -> list[list[str]]:
    """Hand the texts to who started this, and return those of all."""
    sys.stdout.write(f"{json.dumps(texts)}\n")
    sys.stdout.flush()
    return list(json.loads(sys.stdin.readline()))


def main() -> None:
    """Be the rank."""
    rank, ranks, elements = (int(word) for word in sys.argv[2:5])
    table, digest = read_table(Path(sys.argv[1]))
    engine = GroupEngine(table, digest, range(ranks), rank, exchange, Devices("lo"))
    results: dict[str, list[str]] = {}
    for entry in table.entries * RUNS:
        vector = contribution(rank, elements)
        address = int(vector.ctypes.data)
        engine.execute(Work(engine.programs[str(entry.program)], address, address, elements))
        results.setdefault(str(entry.program), []).append(hashlib.sha256(vector.tobytes()).hexdigest())
    exchange([json.dumps(results)])
    engine.close()


if __name__ == "__main__":
    main()
