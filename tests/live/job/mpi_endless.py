"""A rank of an MPI job that calls collectives until a peer is gone; one of them kills itself in the middle of a call.

    python -m tests.live.job.mpi_endless FOLDER VICTIM DELAY_S

Each of the others leaves FOLDER/RANK.json: how many calls were right, whether one was wrong, what the last one raised,
how long it took to do so, and what the next one says.
"""

import itertools
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

ROOT = 1
COUNTS = (1, 300, 20_000)
Vector = Any


def calls(comm: MPI.Comm) -> Iterator[Callable[[], bool]]:
    """Yield calls for ever, each of which says whether its result is right; the values change from call to call."""
    for turn in itertools.count():
        for count in COUNTS:
            yield from _round(comm, count, turn)


def _round(comm: MPI.Comm, count: int, turn: int) -> Sequence[Callable[[], bool]]:
    shares = [_values(rank, count * comm.size, turn) for rank in range(comm.size)]
    own, total = shares[comm.rank], sum(shares)
    part = slice(comm.rank * count, (comm.rank + 1) * count)
    pieces = np.concatenate([share[:count] for share in shares])
    blocks = np.concatenate([share[part] for share in shares])

    wanted = total if comm.rank == ROOT else np.zeros_like(total)
    return (
        lambda: _is(total, lambda out: comm.Allreduce(own, out)),
        lambda: _is(total[part], lambda out: comm.Reduce_scatter_block(own, out)),
        lambda: _is(pieces, lambda out: comm.Allgather(own[:count], out)),
        lambda: _is(blocks, lambda out: comm.Alltoall(own, out)),
        lambda: _is(shares[ROOT], lambda out: comm.Bcast(out, ROOT), shares[comm.rank]),
        lambda: _is(wanted, lambda out: comm.Reduce(own, out if comm.rank == ROOT else None, root=ROOT)),
    )


def _values(rank: int, count: int, turn: int) -> Vector:
    """Return whole numbers, so that sums are exact in any order."""
    return (np.arange(count) % 101 + (rank + 1) * (turn % 50 + 1)).astype(np.float32)


def _is(wanted: Vector, call: Callable[[Vector], None], before: Vector | None = None) -> bool:
    out = np.zeros_like(wanted) if before is None else before.copy()
    call(out)
    return bool(np.array_equal(out, wanted))


def main(folder: Path, victim: int, delay_s: float) -> None:
    comm = MPI.COMM_WORLD
    endless = calls(comm)
    said: dict[str, Any] = {"right": 0, "wrong": 0}
    for _ in range(len(COUNTS) * 6):  # so that all have met
        said["right"] += next(endless)()
    if comm.rank == victim:
        threading.Timer(delay_s, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
    try:
        for call in endless:
            start = time.monotonic()
            said["right" if call() else "wrong"] += 1
    except MPI.Exception as error:
        said |= {"error": str(error), "seconds": time.monotonic() - start, "ended": time.monotonic()}
    try:
        next(endless)()
    except MPI.Exception as error:
        said["next"] = str(error)
    new = folder / f"{comm.rank}.new"
    new.write_text(json.dumps(said))
    new.rename(folder / f"{comm.rank}.json")
    # MPI itself can end no job that has lost a rank; a launcher may see the end of the others before that of the dead.
    os._exit(1 if "error" in said else 0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
