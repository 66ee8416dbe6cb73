"""Ranks of PyTorch that share a device: processes of their own, ended at a limit whatever they hang on.

NCCL 2.30 lets ranks of a host share a GPU by NCCL_MULTI_RANK_GPU_ENABLE. Older ones do not see that they do where
NCCL_HOSTID says that each is on a host of its own; messages go through sockets then.
"""

import json
import os
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from chorale.job import report
from chorale.job.table.layout import table_bytes
from chorale.job.torch.registration import register
from tests.live.job.torch.tables import whole_table

RANKS = 4
LIBRARIES = {"cpu": "gloo", "cuda": "nccl"}
LIMIT = timedelta(seconds=25)
"""Of the group; the first call takes the longest."""
Case = Callable[[int, str], Any]


def on_ranks(
    case: Case, device: str, backend: str, table: bytes | None = None, limit_s: float = 90.0
) -> list[Mapping[str, Any]]:
    """Return what `case(rank, device)` returns on each rank, under "said"; or "error" where it raises or is killed.

    table: by default one that is made here
    """
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "table").write_bytes(table or table_bytes(whole_table()))
        context = mp.get_context("spawn")
        ranks = [context.Process(target=_rank, args=(at, folder, device, backend, case)) for at in range(RANKS)]
        for rank in ranks:
            rank.start()
        end_s = time.monotonic() + limit_s
        while any(rank.is_alive() for rank in ranks) and time.monotonic() < end_s:
            time.sleep(0.05)
            if any(rank.exitcode for rank in ranks):
                end_s = min(end_s, time.monotonic() + 5)
        for rank in ranks:
            rank.kill()
            rank.join()
        return [_said(Path(folder) / f"{at}.json", ranks[at].exitcode) for at in range(RANKS)]


def _prepare(rank: int, folder: str, device: str) -> None:
    """Let this process be `rank` of a job with the table in `folder`, on a device that others use too."""
    os.environ |= {"CHORALE_TABLE": f"{folder}/table", "CHORALE_TRANSPORT": "batched", "NCCL_IB_DISABLE": "1"}
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo", "NCCL_MULTI_RANK_GPU_ENABLE": "1"}
    os.environ["TORCH_NCCL_DUMP_ON_TIMEOUT"] = "0"  # which takes half a minute
    if device == "cuda" and torch.cuda.nccl.version() < (2, 30):
        os.environ["NCCL_HOSTID"] = f"host{rank}"
    warnings.simplefilter("ignore", FutureWarning)  # names that torch 2.13 gave up
    torch.set_num_threads(1)
    if device == "cuda":
        torch.cuda.set_device(0)
    register()


def _said(path: Path, exit_code: int | None) -> Mapping[str, Any]:
    if path.exists():
        return dict(json.loads(path.read_text()))
    return {"error": f"killed at the limit or by a signal: {exit_code}"}


def _rank(rank: int, folder: str, device: str, backend: str, case: Case) -> None:
    _prepare(rank, folder, device)
    said: dict[str, Any] = {}
    try:
        store = dist.FileStore(f"{folder}/store", RANKS)
        dist.init_process_group(backend, store=store, rank=rank, world_size=RANKS, timeout=LIMIT)
        said["said"] = case(rank, device)
        if backend == "chorale":
            said |= {name: report()[name] for name in ("programs", "fallbacks")}
    except Exception as error:
        said["error"] = f"{type(error).__name__}: {error}"
        said["traceback"] = traceback.format_exc().splitlines()[-12:]
    Path(folder, f"{rank}.new").write_text(json.dumps(said))
    Path(folder, f"{rank}.new").rename(Path(folder, f"{rank}.json"))
    os._exit(1 if "error" in said else _ended())


def _ended() -> int:
    dist.destroy_process_group()
    return 0
