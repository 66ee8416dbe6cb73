"""A training job with DDP that goes on until it is told to stop; RANK, WORLD_SIZE and MASTER_ADDR say who it is.

python train.py OPTIONS, as JSON: `stop` is a file that ends the job when it is there, `checkpoint` where rank 0 keeps
the model after each step, to go on from, `timeout_s` of a collective.

After each step rank 0 appends a line to `log`: when the step ended, how long it took, how long an allreduce of
`size` bytes took, whether every element of its sum was right on all ranks, and the tuning table that ran it.
"""

from __future__ import annotations

import json
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from chorale.job import report

WIDTH = 256


def checked_sum(size_bytes: int, rank: int, ranks: int, step: int) -> tuple[float, int]:
    """Return the seconds of an allreduce and how many elements of the sum are wrong, on all ranks together."""
    pattern = torch.arange(size_bytes // 4, dtype=torch.float32) % 1013 + step % 97
    tensor = pattern * (rank + 1)
    dist.barrier()
    began = time.perf_counter()
    dist.all_reduce(tensor)
    seconds = time.perf_counter() - began
    wrong = torch.count_nonzero(tensor != pattern * (ranks * (ranks + 1) // 2)).to(torch.int64).reshape(1)
    dist.all_reduce(wrong)
    return seconds, int(wrong.item())


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, step: int) -> float:
    data = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(1009 * step + rank))
    loss = nn.functional.mse_loss(model(data), data.sum(dim=1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def main() -> None:
    options = json.loads(sys.argv[1])
    log_file, stop = Path(options["log"]), Path(options["stop"])
    path = Path(options["checkpoint"]) if "checkpoint" in options else None
    torch.set_num_threads(1)
    dist.init_process_group("chorale", timeout=timedelta(seconds=options["timeout_s"]))
    rank, ranks, step = dist.get_rank(), dist.get_world_size(), 0
    torch.manual_seed(7)
    layers = [layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    model = DistributedDataParallel(nn.Sequential(*layers, nn.Linear(WIDTH, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    if path is not None and path.exists():
        kept = torch.load(path, weights_only=True)
        model.load_state_dict(kept["model"])
        step = int(kept["step"]) + 1
    is_over = torch.tensor([0])
    while not is_over.item():
        began = time.perf_counter()
        loss = train_step(model, optimizer, rank, step)
        step_s = time.perf_counter() - began
        sum_s, wrong = checked_sum(options["size"], rank, ranks, step)
        if rank == 0:
            if path is not None:  # a job that is killed meanwhile leaves the checkpoint before
                torch.save({"model": model.state_dict(), "step": step}, path.with_suffix(".new"))
                path.with_suffix(".new").replace(path)
            facts = {"step": step, "end_s": time.time(), "step_s": step_s, "sum_s": sum_s, "wrong": wrong}
            with log_file.open("a") as log:
                log.write(json.dumps({**facts, "loss": loss, "table": report()["table"]}) + "\n")
        step += 1
        is_over.fill_(stop.exists())
        dist.broadcast(is_over, 0)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
