"""Gloo's own collectives through torch, on a rank's data. Imported only when they are requested."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from chorale.runners.api.elements import Vector
from chorale.synth.collective import Collective, CollectiveName

_PATIENCE = timedelta(minutes=30)  # the runner has its own limit and ends ranks that hang


def join_group(rank: int, ranks: int, store: str, interface: str) -> None:
    """Join the group of all ranks, which share the file `store`, over the network device `interface`."""
    os.environ["GLOO_SOCKET_IFNAME"] = interface
    torch.set_num_threads(1)
    meeting = dist.FileStore(store, ranks)
    dist.init_process_group("gloo", store=meeting, rank=rank, world_size=ranks, timeout=_PATIENCE)


def run_collective(collective: Collective, input_vector: Vector, output_vector: Vector) -> None:
    """Run `collective` out of place with the Gloo call of that name."""
    source, target = _tensor(input_vector), _tensor(output_vector)
    root = collective.root or 0
    match collective.name:
        case CollectiveName.ALLREDUCE:
            target.copy_(source)
            dist.all_reduce(target)
        case CollectiveName.REDUCE:
            target.copy_(source)
            dist.reduce(target, root)
        case CollectiveName.BROADCAST:
            if dist.get_rank() == root:
                target.copy_(source)
            dist.broadcast(target, root)
        case CollectiveName.ALLGATHER:
            dist.all_gather_into_tensor(target, source)
        case CollectiveName.REDUCE_SCATTER:
            dist.reduce_scatter_tensor(target, source.clone())
        case CollectiveName.ALLTOALL:
            dist.all_to_all_single(target, source)


def _tensor(vector: Vector) -> torch.Tensor:
    """Return a tensor that shares the memory of `vector`."""
    if vector.dtype.name == "bfloat16":  # not one of NumPy's own types
        return torch.from_numpy(vector.view("uint16")).view(torch.bfloat16)
    return torch.from_numpy(vector)
