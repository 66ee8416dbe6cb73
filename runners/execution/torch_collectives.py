"""Runs collectives of torch.distributed. Importing this module takes seconds, because it imports torch."""

import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from chorale.runners.api.elements import Vector
from chorale.synth.collective import Collective, CollectiveName


def join_gloo(rank: int, ranks: int, store: str, interface: str) -> None:
    """Join the group of all ranks over the network device `interface`. All ranks share the file `store`."""
    os.environ["GLOO_SOCKET_IFNAME"] = interface
    torch.set_num_threads(1)
    meeting, patience = dist.FileStore(store, ranks), timedelta(minutes=30)  # the runner ends ranks that hang
    dist.init_process_group("gloo", store=meeting, rank=rank, world_size=ranks, timeout=patience)


def run_collective(collective: Collective, source: torch.Tensor, target: torch.Tensor, group: Any = None) -> None:
    """Run `collective` with torch's call of that name, from `source` to `target`, which may be the same tensor."""
    match collective.name:
        case CollectiveName.ALLGATHER:
            dist.all_gather_into_tensor(target, source, group=group)
        case CollectiveName.REDUCE_SCATTER:
            dist.reduce_scatter_tensor(target, source, group=group)
        case CollectiveName.ALLTOALL:
            dist.all_to_all_single(target, source, group=group)
        case name:
            if source.data_ptr() != target.data_ptr():  # torch only has in-place calls for these collectives
                target.copy_(source)
            if name is CollectiveName.ALLREDUCE:
                dist.all_reduce(target, group=group)
            elif name is CollectiveName.BROADCAST:
                dist.broadcast(target, collective.root or 0, group=group)
            else:
                dist.reduce(target, collective.root or 0, group=group)


def tensor_of(vector: Vector) -> torch.Tensor:
    """Return a tensor that shares the memory of `vector`."""
    if vector.dtype.name == "bfloat16":  # NumPy itself does not have this type
        return torch.from_numpy(vector.view("uint16")).view(torch.bfloat16)
    return torch.from_numpy(vector)
