"""Finds how many of the machine's cores and how much memory this process may use, and runs functions on these cores."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import product
from math import inf
from pathlib import Path
from typing import TypeVar

Part = TypeVar("Part")
Result = TypeVar("Result")

_CGROUPS = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")


def core_count() -> int:
    """Return how many cores this process may use, given its CPU affinity and cgroup quotas (rounded down)."""
    return max(1, int(min([_allowed(), *_quotas()])))


def core_limits() -> str:
    """Return why this process may use fewer cores than the machine has, or "" if it may use all of them."""
    found, allowed, quota = os.cpu_count() or 1, _allowed(), min(_quotas(), default=inf)
    reasons = [f"CPU affinity allows {allowed} of {found}"] if allowed < found else []
    return ", ".join([*reasons, *([f"the cgroup's quota is {quota:g}"] if quota < found else [])])


def _allowed() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_limit() -> float:
    """Return the memory limit of this process's control groups (cgroups) in bytes, or infinity if there is none."""
    return min((size for size, *_ in _limits("memory", ("memory.max",), ("memory.limit_in_bytes",))), default=inf)


def _quotas() -> Iterator[float]:
    """Yield the quota, in cores, of each control group that contains this process."""
    for quota_us, period_us, *_ in _limits("cpu", ("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        if quota_us > 0 and period_us > 0:
            yield quota_us / period_us


def _limits(controller: str, *forms: tuple[str, ...]) -> Iterator[list[int]]:
    """Yield the numbers in the files of `controller` for each control group (cgroup) that contains this process.

    forms: names of the controller's files: one tuple for version 2 of cgroups, then one for version 1
    """
    with suppress(OSError):
        for line in _MEMBERSHIP.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and controller not in controllers.split(","):
                continue
            roots = [_CGROUPS / controllers, _CGROUPS / controller] if controllers else [_CGROUPS, _CGROUPS / "unified"]
            for root in roots:
                group = root / path.strip("/")
                folders = (group, *(parent for parent in group.parents if parent.is_relative_to(root)))
                for folder, names in product(folders, forms):
                    with suppress(OSError, ValueError):  # another cgroup version, or no limit (`max`)
                        words = " ".join((folder / name).read_text() for name in names).split()
                        yield [int(word) for word in words]


def in_threads(function: Callable[[Part], Result], parts: Sequence[Part]) -> list[Result]:
    """Return `[function(part) for part in parts]`, computed in one thread per core.

    `function` should spend its time in kernels, which release the interpreter lock.
    """
    threads = min(len(parts), core_count())
    if threads <= 1:
        return [function(part) for part in parts]
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 (slow, and small networks have one part)

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(function, parts))


def blocks(count: int, size: int) -> list[slice]:
    """Return slices of `size` elements that cover `count` elements; the last slice may be shorter."""
    return [slice(start, min(count, start + size)) for start in range(0, count, size)]
