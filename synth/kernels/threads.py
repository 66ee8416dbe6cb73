"""Kernels release the interpreter lock: independent calls of them run on all cores of the process."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future

Part = TypeVar("Part")
Result = TypeVar("Result")


def in_threads(function: Callable[[Part], Result], parts: Sequence[Part]) -> list[Result]:
    """Return `[function(part) for part in parts]`; how many cores there are changes nothing but the time."""
    threads = min(len(parts), _cores())
    if threads <= 1:
        return [function(part) for part in parts]
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 (slow, and small networks have one part)

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(function, parts))


def in_threads_by_turns(function: Callable[[Part], Result], parts: Sequence[Part]) -> Iterator[Result]:
    """Yield `function(part)` for each of `parts` in order; as many as there are cores are computed ahead."""
    threads = min(len(parts), _cores())
    if threads <= 1:
        yield from map(function, parts)
        return
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 (slow, and small networks have one part)

    with ThreadPoolExecutor(threads) as pool:
        ahead: deque[Future[Result]] = deque()
        try:
            for part in parts:
                ahead.append(pool.submit(function, part))
                if len(ahead) > threads:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:
            for future in ahead:
                future.cancel()


def blocks(count: int, size: int) -> list[slice]:
    """Return slices of `size` elements that cover `count` of them; the last may be shorter."""
    return [slice(start, min(count, start + size)) for start in range(0, count, size)]


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
