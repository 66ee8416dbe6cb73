"""Time recorded collectives in a job, with two backends in turn, and write all times to one JSON document.

python collective_times.py --calls '[["allreduce", 1048576]]' --repeats 5 --output times.json
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

BACKENDS = ("gloo", "chorale")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", required=True, help="a JSON list of [collective, size in bytes]")
    parser.add_argument("--backends", default=",".join(BACKENDS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=Path, required=True)
    return parser.parse_args()


def call_of(collective: str, size_bytes: int, group: Any) -> Callable[[], Any]:
    """Return a function that runs the collective on float32 elements. size_bytes: size of the whole vector"""
    ranks = dist.get_world_size()
    whole = torch.zeros(max(1, size_bytes // 4 // ranks) * ranks)
    part = torch.zeros(len(whole) // ranks)
    if collective == "allreduce":
        whole = torch.zeros(max(1, size_bytes // 4))
        return lambda: dist.all_reduce(whole, group=group)
    if collective == "allgather":
        return lambda: dist.all_gather_into_tensor(whole, part, group=group)
    return lambda: dist.reduce_scatter_tensor(part, whole, group=group)


def times(calls: list[tuple[str, int]], groups: dict[str, Any], repeats: int) -> list[dict[str, Any]]:
    """Run each call with all backends in turn, after a warm-up; return the times of the slowest rank in seconds."""
    rows = []
    for collective, size_bytes in calls:
        seconds: dict[str, list[float]] = {name: [] for name in groups}
        runs = {name: call_of(collective, size_bytes, group) for name, group in groups.items()}
        for repeat in range(repeats + 1):
            for name, run in runs.items():
                dist.barrier()
                began = time.perf_counter()
                run()
                spent = torch.tensor([time.perf_counter() - began], dtype=torch.float64)
                dist.all_reduce(spent, dist.ReduceOp.MAX)
                if repeat:
                    seconds[name].append(float(spent))
        rows.append({"collective": collective, "size_bytes": size_bytes, "seconds": seconds})
    return rows


def main() -> None:
    options = arguments()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    groups = {name: dist.new_group(backend=name) for name in options.backends.split(",")}
    rows = times(json.loads(options.calls), groups, options.repeats)
    if dist.get_rank() == 0:
        options.output.write_text(json.dumps(rows))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
