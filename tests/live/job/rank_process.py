"""One rank of a job that runs what a tuning table says.

It reads its task as a line of JSON. For each group that it is in it writes its texts, reads those of all ranks of the
group, and writes which program ran at each size and whether every element of the result is right.
"""

import ctypes
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chorale.job.group import GroupEngine
from chorale.job.settings import read_table
from chorale.job.table.lookup import Fallback
from chorale.runners.engine.library import Work

ELEMENT_BYTES = 4


def say(what: object) -> None:
    """Write a line of JSON."""
    sys.stdout.write(f"{json.dumps(what)}\n")
    sys.stdout.flush()


def exchange(texts: list[str]) -> list[list[str]]:
    """Give the texts to whoever started this process, and return those of all."""
    say(texts)
    return json.loads(sys.stdin.readline())


def allreduce(engine: GroupEngine, rank: int, ranks: int, size_bytes: int) -> dict[str, Any]:
    """Run what the table has for an allreduce of `size_bytes`, and compare all elements with the sum."""
    entry = engine.entries.find("allreduce", None, "float32", size_bytes)
    if isinstance(entry, Fallback):
        return {"program": None, "reason": entry.value, "right": None}
    count = size_bytes // ELEMENT_BYTES
    data = (ctypes.c_float * count)(*((rank + 1) * (index % 97) for index in range(count)))
    address = ctypes.addressof(data)
    engine.execute(Work(engine.programs[str(entry.program)], address, address, count, limit_s=30.0))
    total = ranks * (ranks + 1) // 2
    right = all(value == total * (index % 97) for index, value in enumerate(data))
    return {"program": entry.program, "reason": None, "right": right}


def in_group(task: Mapping[str, Any], group: list[int]) -> None:
    """Join a group and run its sizes."""
    table, digest = read_table(Path(task["table"]))
    position = group.index(task["rank"])
    engine = GroupEngine(table, digest, group, position, exchange, limit_s=20.0)
    say({str(size): allreduce(engine, position, len(group), size) for size in task["sizes"]})
    sys.stdin.readline()  # nobody leaves before all have finished
    engine.close()


def main() -> None:
    """Be the rank."""
    task = json.loads(sys.stdin.readline())
    for group in task["groups"]:
        if task["rank"] in group:
            in_group(task, group)


if __name__ == "__main__":
    main()
