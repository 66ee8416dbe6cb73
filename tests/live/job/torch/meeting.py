"""How the ranks of a scenario form a job, again and again in the same processes."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from chorale.job import current_report

TIMEOUT = timedelta(seconds=30)


@dataclass(slots=True)
class Meeting:
    """folder: of the scenario, the same on all ranks"""

    folder: Path
    rank: int
    ranks: int
    _count: int = 0

    @contextmanager
    def job(self, backend: str = "chorale", timeout: timedelta = TIMEOUT, **environment: str) -> Iterator[None]:
        """Be a rank of a job with this backend and these variables; none of an earlier job counts in the report."""
        self._count += 1
        self.folder.mkdir(parents=True, exist_ok=True)
        store = dist.FileStore(str(self.folder / f"store-{self._count}"), self.ranks)
        before = dict(os.environ)
        os.environ.update(environment)
        current_report().__init__()  # type: ignore[misc]
        try:
            dist.init_process_group(backend, store=store, rank=self.rank, world_size=self.ranks, timeout=timeout)
            yield
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
            os.environ.clear()
            os.environ.update(before)

    def wait_for_all(self) -> None:
        """Return when all ranks are in the job: gloo fails at a rank that still connects when another leaves."""
        store = dist.FileStore(str(self.folder / f"in-{self._count}"), self.ranks)
        store.set(str(self.rank), "in")
        store.wait([str(rank) for rank in range(self.ranks)], TIMEOUT)


def replace_file(path: Path, data: bytes) -> None:
    """Put `data` there at once, whoever reads the file meanwhile."""
    path.with_suffix(".new").write_bytes(data)
    path.with_suffix(".new").replace(path)


def called(call: Callable[..., Any], tensor: torch.Tensor, *more: Any, **options: Any) -> torch.Tensor:
    """Make a collective call on a copy of `tensor`, and return the copy once the call is over."""
    copy = tensor.clone()
    work = call(copy, *more, **options)
    if work is not None:
        work.wait()
    return copy


def program_calls() -> dict[str, int]:
    """Return how many programs ran, by collective."""
    calls: dict[str, int] = {}
    for entry in current_report().to_json()["programs"]:
        calls[entry["collective"]] = calls.get(entry["collective"], 0) + entry["calls"]
    return calls


def fallback_calls() -> dict[tuple[str, str], int]:
    """Return how many calls the library served, by collective and reason."""
    return {(entry["collective"], entry["reason"]): entry["calls"] for entry in current_report().to_json()["fallbacks"]}


def calls_by_reason(reason: str) -> dict[str, Any]:
    return {collective: calls for (collective, why), calls in fallback_calls().items() if why == reason}
