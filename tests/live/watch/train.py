"""A training job with DDP that goes on until it is told to stop; RANK, WORLD_SIZE and MASTER_ADDR say who it is.

python train.py --log steps.jsonl --stop FILE

After each step rank 0 appends a line to the log: when the step ended, how long it took, how long an allreduce of
`--size` bytes took, whether every element of its sum was right on all ranks, and the tuning table that ran it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

SEED, WIDTH, BATCH = 7, 256, 8


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="chorale")
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--stop", type=Path, required=True, help="the job ends when this file is there")
    parser.add_argument("--most-steps", type=int, default=100_000)
    parser.add_argument("--checkpoint", type=Path, help="where rank 0 keeps the model after each step, to go on from")
    parser.add_argument("--timeout-s", type=float, default=120, help="after which a collective has failed")
    parser.add_argument("--size", type=int, default=1 << 20, help="bytes of the allreduce that is checked")
    return parser.parse_args()


def make_model() -> nn.Module:
    """Return the same model on every rank, of a quarter of a million parameters."""
    torch.manual_seed(SEED)
    layers = [layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    return DistributedDataParallel(nn.Sequential(*layers, nn.Linear(WIDTH, 1)))


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
    """Return the loss of a step on data that the rank and the step decide."""
    random = torch.Generator().manual_seed(1009 * step + rank)
    data = torch.randn(BATCH, WIDTH, generator=random)
    loss = nn.functional.mse_loss(model(data), data.sum(dim=1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def is_over(options: argparse.Namespace, rank: int) -> bool:
    """Return on all ranks what rank 0 sees."""
    over = torch.tensor([int(rank == 0 and options.stop.exists())])
    dist.broadcast(over, 0)
    return bool(over.item())


def load_checkpoint(path: Path | None, model: nn.Module) -> int:
    """Have the model of the last step that was kept; return the number of the next one."""
    if path is None or not path.exists():
        return 0
    kept = torch.load(path, weights_only=True)
    model.load_state_dict(kept["model"])
    return int(kept["step"]) + 1


def save_checkpoint(path: Path, model: nn.Module, step: int) -> None:
    """Keep the model of a step; a job that is killed meanwhile leaves the one before."""
    torch.save({"model": model.state_dict(), "step": step}, path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)


def current_table() -> Any:
    """Return the digest of the table that runs; None with another backend."""
    report = sys.modules.get("chorale.job")
    return report.report()["table"] if report is not None else None


def main() -> None:
    options = arguments()
    torch.set_num_threads(1)
    dist.init_process_group(options.backend, timeout=timedelta(seconds=options.timeout_s))
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for step in range(load_checkpoint(options.checkpoint, model), options.most_steps):
        began = time.perf_counter()
        loss = train_step(model, optimizer, rank, step)
        step_s = time.perf_counter() - began
        sum_s, wrong = checked_sum(options.size, rank, ranks, step)
        if rank == 0:
            if options.checkpoint is not None:
                save_checkpoint(options.checkpoint, model, step)
            facts = {"step": step, "end_s": time.time(), "step_s": step_s, "sum_s": sum_s, "wrong": wrong}
            with options.log.open("a") as log:
                log.write(json.dumps({**facts, "loss": loss, "table": current_table()}) + "\n")
        if is_over(options, rank):
            break
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
