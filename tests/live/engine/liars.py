"""Random trials of two ranks with somebody between them who meddles: a right result or an error in time, or it says so.

    python -m tests.live.engine.liars --count 500 --seed 1 [--library PATH]

It loads nothing that a sanitizer would stumble over.
"""

from __future__ import annotations

import argparse
import ctypes
import random
import sys
import threading
import time
from array import array
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from chorale.runners.engine.library import DataType, Engine, EngineError, ReduceOp, Work
from tests.live.engine.meddler import KINDS, Meddler

MESSAGES = 3
CHUNK_ELEMENTS = 97
LIMIT_S = 0.5
MARGIN_S = 1.0
HELLO_BYTES = 40
_ALLREDUCE, _SEND, _REDUCE_COPY, _RECEIVE = 2, 0, 4, 1


def words(rank: int) -> array[int]:
    """Return the part of `rank` in a program of two: 1 sends all its chunks, 0 adds them to its own and sends back."""
    there = [[_SEND if rank else _REDUCE_COPY, 0, chunk, 1, chunk, 1, 0] for chunk in range(MESSAGES)]
    back = [[_RECEIVE if rank else _SEND, 1, chunk, 1, chunk, 1, 1, 0, chunk] for chunk in range(MESSAGES)]
    result = [1, _ALLREDUCE, -1, 2, MESSAGES, 1, 0, 2, 2]
    for steps in (there, back):
        _append_block(result, rank, steps)
    return array("q", result)


def _append_block(result: list[int], rank: int, steps: Sequence[Sequence[int]]) -> None:
    sends = steps[0][0] == _SEND
    result.extend((1 - rank if sends else -1, -1 if sends else 1 - rank, 0, len(steps)))
    for step in steps:
        result.extend(step)


def trial(kind: str, after: int, seed: int, library: Path | None) -> list[str]:
    """Return how the ranks ended: OK, the name of a status, or what must not be."""
    engines = [Engine(rank, 2, library) for rank in range(2)]
    numbers = [engine.load(words(rank)) for rank, engine in enumerate(engines)]
    addresses = [engine.listen("tcp:127.0.0.1") for engine in engines]
    meddler = Meddler(addresses[0], kind, after, seed)
    ends = ["", ""]

    def be(rank: int) -> None:
        reached = [addresses[0] if rank == 0 else meddler.address, addresses[1]]
        ends[rank] = _outcome(engines[rank], reached, numbers[rank])
        if ends[rank] != "OK":
            engines[rank].close()

    threads = [threading.Thread(target=be, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    meddler.close()
    for engine in engines:
        engine.close()
    return ends


def _outcome(engine: Engine, addresses: Sequence[str], number: int) -> str:
    elements = MESSAGES * CHUNK_ELEMENTS
    started_s = time.monotonic()
    try:
        engine.connect(addresses, bytes(range(16)), LIMIT_S)
        for turn in range(2):
            data = (ctypes.c_int64 * elements)(*range(turn, elements + turn))
            address = ctypes.addressof(data)
            started_s = time.monotonic()
            engine.execute(Work(number, address, address, elements, DataType.INT64, ReduceOp.SUM, 1, LIMIT_S))
            if list(data) != [2 * value for value in range(turn, elements + turn)]:
                return "WRONG"
    except EngineError as error:
        return error.status.name if time.monotonic() - started_s < LIMIT_S + MARGIN_S else "LATE"
    return "OK"


def random_trials(count: int, seed: int, library: Path | None = None) -> Counter[tuple[str, str, str]]:
    """Return how often what kind of meddling ended how at both ranks."""
    draw = random.Random(seed)
    found: Counter[tuple[str, str, str]] = Counter()
    run_bytes = MESSAGES * (CHUNK_ELEMENTS * 8 + 20)
    for turn in range(count):
        kind = KINDS[turn % len(KINDS)]
        after = draw.randrange(HELLO_BYTES) if draw.random() < 0.1 else draw.randrange(HELLO_BYTES, 2 * run_bytes + 40)
        first, second = trial(kind, after, draw.randrange(2**32), library)
        found[kind, first, second] += 1
    return found


def main(arguments: Sequence[str]) -> int:
    """Run trials and report; 1 where a wrong result was passed off as right or an error came late."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--library", type=Path)
    asked = parser.parse_args(arguments)
    found = random_trials(asked.count, asked.seed, asked.library)
    for (kind, *ends), count in sorted(found.items()):
        sys.stdout.write(f"{kind:8} {' '.join(ends):24} {count}\n")
    return int(any({"WRONG", "LATE"} & set(ends) for ends in found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
