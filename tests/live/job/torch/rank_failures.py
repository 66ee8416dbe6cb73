"""Ranks that die or stall while three of them train: the others must end with an error of Python, never by a signal.

`python -m tests.live.job.torch.rank_failures --rounds 50` plays every kind of failure so often and prints how the
survivors ended.
"""

import argparse
import ctypes
import json
import multiprocessing
import os
import random
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from multiprocessing.context import ForkProcess
from pathlib import Path

import torch
import torch._dynamo
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from chorale.job.table.layout import table_bytes
from chorale.job.torch.ddp_hook import ProgramHook, average_gradients
from chorale.job.torch.registration import register
from tests.live.job.torch.meeting import replace_file
from tests.live.job.torch.tables import SYMMETRIC, program_for, table_of
from tests.waiting import until

FORK = multiprocessing.get_context("fork")
RANKS = 3
_PR_SET_PDEATHSIG = 1
MEETING, TIMEOUT = timedelta(seconds=60), timedelta(seconds=2)
"""Of a group until all its ranks train, and from then on."""
LIMIT_S = 60.0


def _compressed(group: dist.ProcessGroup, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    return default_hooks.bf16_compress_hook(group, bucket)


def _ddp(model: torch.nn.Module) -> torch.nn.Module:
    return DistributedDataParallel(model, bucket_cap_mb=0.002)


def _compressing(model: torch.nn.Module) -> torch.nn.Module:
    parallel = DistributedDataParallel(model, bucket_cap_mb=0.002)
    parallel.register_comm_hook(dist.group.WORLD, _compressed)
    return parallel


def _hooked(model: torch.nn.Module) -> torch.nn.Module:
    parallel = DistributedDataParallel(model, bucket_cap_mb=0.002)
    parallel.hook = ProgramHook(timeout=MEETING)
    parallel.register_comm_hook(parallel.hook, average_gradients)
    return parallel


def _sharded(model: torch.nn.Module) -> torch.nn.Module:
    for layer in (model[0], model[2], model):  # type: ignore[index]
        fully_shard(layer)
    return model


TRAININGS: dict[str, tuple[str, Callable[[torch.nn.Module], torch.nn.Module]]] = {
    "ddp": ("chorale", _ddp), "reload": ("chorale", _ddp), "compressed": ("chorale", _compressing),
    "hook": ("gloo", _hooked), "fsdp": ("chorale", _sharded),
}  # fmt: skip
"""Backend and model; while `reload` trains, its table is replaced again and again."""
KINDS = tuple(f"{training} {what}" for training in TRAININGS for what in ("killed", "stalled"))


def tables() -> tuple[bytes, bytes]:
    """Return the files of two tables of the same programs."""
    table = table_of("ring:3", RANKS, ((program_for(name, ranks=RANKS), None, 0, None) for name in SYMMETRIC))
    return table_bytes(table), table_bytes(replace(table, provenance={"made": "again"}))


def play(kind: str, seed: int, files: tuple[bytes, bytes]) -> list[str]:
    """Return how each survivor of one round ended: `error: …`, `signal N`, `hang`, or what else."""
    training, what = kind.split()
    draw = random.Random(f"{kind} {seed}")
    victim = draw.randrange(RANKS)
    with tempfile.TemporaryDirectory(prefix="chorale-failures-") as name, socket.create_server(("127.0.0.1", 0)) as one:
        folder, port = Path(name), one.getsockname()[1]
        one.close()
        replace_file(folder / "table", files[0])
        processes = [FORK.Process(target=_be, args=(training, rank, folder, port)) for rank in range(RANKS)]
        for process in processes:
            process.start()
        try:
            until(lambda: all((folder / f"{rank}.ready").exists() for rank in range(RANKS)), LIMIT_S)
            until_s = time.monotonic() + draw.uniform(0, 0.3)
            for turn in range(1, 100):
                if training == "reload":
                    replace_file(folder / "table", files[turn % 2])
                if time.monotonic() > until_s:
                    break
                time.sleep(0.02)
            os.kill(int(processes[victim].pid or 0), signal.SIGKILL if what == "killed" else signal.SIGSTOP)
            return [_ending(processes[rank], folder / f"{rank}.json") for rank in range(RANKS) if rank != victim]
        finally:
            for process in processes:
                process.kill()
                process.join()


def _ending(process: ForkProcess, said: Path) -> str:
    process.join(LIMIT_S)
    if process.exitcode is None:
        return "hang"
    if process.exitcode < 0:
        return f"signal {-process.exitcode}"
    return said.read_text() if said.exists() else f"exit {process.exitcode}"


def _be(training: str, rank: int, folder: Path, port: int) -> None:
    """Be a rank, a copy of the process of the rounds: torch is imported once for all of them."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # nobody trains on when the rounds are over
    try:
        with (folder / f"{rank}.log").open("wb") as log:
            os.dup2(log.fileno(), 2)
        os.environ |= {"CHORALE_TABLE": str(folder / "table"), "CHORALE_RELOAD": "0.05", "GLOO_SOCKET_IFNAME": "lo"}
        _train(training, rank, folder, port)
    except Exception as error:
        (folder / f"{rank}.json").write_text(f"error: {type(error).__name__}: {error}")
    finally:
        os._exit(0)


def _train(training: str, rank: int, folder: Path, port: int) -> None:
    torch.set_num_threads(1)
    register()
    backend, prepare = TRAININGS[training]
    store = dist.TCPStore("127.0.0.1", port, RANKS, rank == 0, MEETING)
    dist.init_process_group(backend, store=store, rank=rank, world_size=RANKS, timeout=MEETING)
    torch.manual_seed(7)
    model = prepare(torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 4)))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for step in range(100_000):
        optimizer.zero_grad()
        model(torch.randn(8, 16)).square().mean().backward()
        optimizer.step()
        if step == 2:
            dist.group.WORLD.set_timeout(TIMEOUT)
            if hasattr(model, "hook"):
                model.hook._programs.limit_s = TIMEOUT.total_seconds()
            (folder / f"{rank}.ready").touch()


def main() -> None:
    """Play every kind and print the counts; exit 1 if a rank ended by something else than an error."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--kind", action="append", choices=KINDS)
    given = parser.parse_args()
    files, failed = tables(), False
    for kind in given.kind or KINDS:
        counts: Counter[str] = Counter()
        texts: Counter[str] = Counter()
        for seed in range(given.rounds):
            for ending in play(kind, seed, files):
                counts[ending.split(":")[0]] += 1
                texts[ending.splitlines()[0][:150]] += 1
        failed |= counts.keys() != {"error"}
        sys.stdout.write(json.dumps({"kind": kind, "rounds": given.rounds, **counts}) + "\n")
        for text, count in texts.most_common(4):
            sys.stdout.write(f"  {count}: {text}\n")
        sys.stdout.flush()
    sys.exit(int(failed))


if __name__ == "__main__":
    main()
