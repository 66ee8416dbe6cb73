"""An ordinary training job with DDP or FSDP2 and any backend. RANK, WORLD_SIZE and MASTER_ADDR identify the process.

python train.py --backend gloo --sharding ddp --steps 6 --output losses.json
"""

from __future__ import annotations

import argparse
import json
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from model import BYTES, batch, make_model, round_gradients
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

SEED = 7
BUCKET_MB = 1


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="gloo")
    parser.add_argument("--sharding", choices=["ddp", "fsdp2"], default="ddp")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--output", type=Path)
    return parser.parse_args()


def distributed(sharding: str) -> nn.Module:
    """Return the model with all parameters on every rank (ddp) or with a part of them on each rank (fsdp2)."""
    model = make_model(SEED)
    if sharding == "ddp":
        round_gradients(model)
        return DistributedDataParallel(model, bucket_cap_mb=BUCKET_MB)
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def main() -> None:
    options = arguments()
    torch.set_num_threads(1)
    dist.init_process_group(options.backend, timeout=timedelta(seconds=120))
    rank = dist.get_rank()
    model = distributed(options.sharding)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses, seconds = [], []
    for step in range(options.steps):
        dist.barrier()
        began = time.perf_counter()
        text, following = batch(SEED, rank, step)
        loss = nn.functional.cross_entropy(model(text).reshape(-1, BYTES), following.reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seconds.append(time.perf_counter() - began)
        losses.append(loss.item())
    everyone: list[list[float]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(everyone, losses)
    if rank == 0 and options.output:
        record = {"backend": options.backend, "sharding": options.sharding, "step_s": seconds, "losses": everyone}
        options.output.write_text(json.dumps(record))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
