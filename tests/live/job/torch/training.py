"""Scenarios of training: what a model learns with chorale against the same with gloo."""

from collections.abc import Callable
from contextlib import closing, nullcontext

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from chorale.job.torch.ddp_hook import ProgramHook, average_gradients
from tests.live.job.torch.meeting import Meeting, program_calls

STEPS = 4


def _model() -> torch.nn.Sequential:
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 4))


def _batch(rank: int, step: int) -> torch.Tensor:
    return torch.randn(8, 16, generator=torch.Generator().manual_seed(100 * step + rank))


def _train(
    model: torch.nn.Module, rank: int, steps: range = range(STEPS), accumulate: bool = False, autocast: bool = False
) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    losses = []
    for step in steps:
        optimizer.zero_grad()
        context = torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext()
        if accumulate:
            with model.no_sync(), context:
                model(_batch(rank, step + 1000)).square().mean().backward()
        with context:
            loss = model(_batch(rank, step)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def _against_gloo(
    meeting: Meeting, train: Callable[[], list[float]], collectives: set[str], tolerance: float = 1e-6
) -> None:
    """Programs add in another order than gloo, so that losses may differ by roundings: a few in 10^7 at four ranks."""
    with meeting.job("gloo"):
        expected = train()
    with meeting.job():
        losses = train()
        calls = program_calls()
    assert calls.keys() >= collectives, calls
    assert losses[0] == expected[0]
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected), rtol=tolerance, atol=0)


def ddp_with_accumulation(meeting: Meeting) -> None:
    def train() -> list[float]:
        model = DistributedDataParallel(_model(), bucket_cap_mb=0.002)
        return _train(model, meeting.rank, accumulate=True)

    _against_gloo(meeting, train, {"allreduce"})


def ddp_in_bfloat16(meeting: Meeting) -> None:
    def compress(group: dist.ProcessGroup, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        return default_hooks.bf16_compress_hook(group, bucket)  # by itself it is for GPUs only, says torch

    def train() -> list[float]:
        model = DistributedDataParallel(_model())
        model.register_comm_hook(dist.group.WORLD, compress)
        return _train(model, meeting.rank, autocast=True)

    _against_gloo(meeting, train, {"allreduce"}, tolerance=2**-7)


def fsdp2(meeting: Meeting) -> None:
    def train() -> list[float]:
        model = _model()
        for layer in (model[0], model[2], model):
            fully_shard(layer)
        return _train(model, meeting.rank)

    _against_gloo(meeting, train, {"allgather", "reduce_scatter"})


def checkpoint_and_restart(meeting: Meeting) -> None:

    def sharded() -> torch.nn.Module:
        return fully_shard(_model())

    with meeting.job():
        straight = _train(sharded(), meeting.rank)
    with meeting.job():
        model = sharded()
        halves = _train(model, meeting.rank, range(2))
        checkpoint.save(model.state_dict(), checkpoint_id=str(meeting.folder / "checkpoint"))
    with meeting.job():
        model = sharded()
        state = model.state_dict()
        checkpoint.load(state, checkpoint_id=str(meeting.folder / "checkpoint"))
        model.load_state_dict(state)
        halves += _train(model, meeting.rank, range(2, STEPS))
    assert halves == straight


def hook_beside_gloo(meeting: Meeting) -> None:

    def train(hook: bool) -> list[float]:
        model = DistributedDataParallel(_model(), bucket_cap_mb=0.002)
        if not hook:
            return _train(model, meeting.rank)
        with closing(ProgramHook()) as programs:
            model.register_comm_hook(programs, average_gradients)
            return _train(model, meeting.rank)

    with meeting.job():
        expected = train(hook=False)
    with meeting.job("gloo"):
        losses = train(hook=True)
        assert program_calls()["allreduce"] >= STEPS
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected), rtol=1e-6, atol=0)
