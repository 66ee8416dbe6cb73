"""Training on a GPU by DistributedDataParallel and by fully sharded data parallelism."""

from typing import Any

import torch
import torch.distributed as dist

STEPS = 6
WIDTH = 256


def ddp(rank: int, device: str) -> list[float]:
    """Return the losses of a model whose gradients go in several buckets while others are computed."""
    model = torch.nn.parallel.DistributedDataParallel(_model(device), bucket_cap_mb=0.4)
    return _losses(model, rank, device)


def fsdp(rank: int, device: str) -> list[float]:
    """Return the losses of the same model with each layer's parameters sharded."""
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415 - takes seconds

    mesh = dist.device_mesh.init_device_mesh(device, (dist.get_world_size(),))
    model = _model(device)
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return _losses(model, rank, device)


def _model(device: str) -> Any:
    torch.manual_seed(0)
    layers = []
    for _ in range(4):
        layers += [torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, 10)).to(device)


def _losses(model: Any, rank: int, device: str) -> list[float]:
    """Return the losses of `model` while it is trained on data of each rank's own."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    draw, seen = torch.Generator().manual_seed(rank), []
    for _ in range(STEPS):
        data = torch.randn(32, WIDTH, generator=draw).to(device)
        labels = torch.randint(0, 10, (32,), generator=draw).to(device)
        loss = torch.nn.functional.cross_entropy(model(data), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append(loss.item())
    return seen
