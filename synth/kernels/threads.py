"""Runs independent kernel calls on all available cores. This works because kernels release the interpreter lock."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from chorale.synth.processors import core_count

Part = TypeVar("Part")
Result = TypeVar("Result")


def in_threads(function: Callable[[Part], Result], parts: Sequence[Part]) -> list[Result]:
    """Return `[function(part) for part in parts]`, computed in one thread per core."""
    threads = min(len(parts), core_count())
    if threads <= 1:
        return [function(part) for part in parts]
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 (slow, and small networks have one part)

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(function, parts))


def blocks(count: int, size: int) -> list[slice]:
    """Return slices of `size` elements that cover `count` elements; the last slice may be shorter."""
    return [slice(start, min(count, start + size)) for start in range(0, count, size)]
