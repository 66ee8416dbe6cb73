"""Finds how many processors this process may use. In a container or job, there may be fewer than the machine has."""

import os
from collections.abc import Iterator
from contextlib import suppress
from itertools import product
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")


def core_count() -> int:
    """Return how many cores this process may use, from its CPU affinity and cgroup quotas (rounded to whole cores)."""
    return max(1, int(min([_allowed(), *_quotas()])))


def core_limits() -> str:
    """Return why this process may use fewer cores than the machine has, or "" if it may use all of them."""
    found, allowed, quota = os.cpu_count() or 1, _allowed(), min(_quotas(), default=float("inf"))
    reasons = [f"CPU affinity allows {allowed} of {found}"] if allowed < found else []
    return ", ".join([*reasons, *([f"the cgroup's quota is {quota:g}"] if quota < found else [])])


def _allowed() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _quotas() -> Iterator[float]:
    """Yield the quota, in cores, of each control group that contains this process. Supports cgroups v1 and v2."""
    with suppress(OSError):
        for line in _MEMBERSHIP.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "cpu" not in controllers.split(","):
                continue
            roots = [_CGROUPS / controllers, _CGROUPS / "cpu"] if controllers else [_CGROUPS, _CGROUPS / "unified"]
            for root in roots:
                group = root / path.strip("/")
                folders = (group, *(parent for parent in group.parents if parent.is_relative_to(root)))
                for folder, names in product(folders, (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us"))):
                    with suppress(OSError, ValueError):  # another cgroup version, or no limit (`max`)
                        words = " ".join((folder / name).read_text() for name in names).split()
                        quota_us, period_us = map(int, words[:2])
                        if quota_us > 0 and period_us > 0:
                            yield quota_us / period_us
