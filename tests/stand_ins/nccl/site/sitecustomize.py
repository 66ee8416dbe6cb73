"""Gives torch.distributed the backend `stand_in` in processes whose PYTHONPATH has this folder."""

import torch.distributed as dist

from tests.stand_ins.nccl.torch_backend import StandInGroup

dist.Backend.register_backend("stand_in", StandInGroup, devices=["cpu"])
