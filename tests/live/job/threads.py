"""Ranks of a group as threads of one process, which exchange texts."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Exchange = Callable[[list[str]], list[list[str]]]
Result = TypeVar("Result")


def on_threads(ranks: int, be: Callable[[int, Exchange], Result]) -> list[Result]:
    """Return what `be` gives for each rank and its way to exchange texts."""
    barrier, texts = threading.Barrier(ranks, timeout=60), [[""]] * ranks

    def exchange_of(rank: int) -> Exchange:
        def exchange(own: list[str]) -> list[list[str]]:
            texts[rank] = own
            barrier.wait()
            everyone = list(texts)
            barrier.wait()
            return everyone

        return exchange

    with ThreadPoolExecutor(ranks) as threads:
        return list(threads.map(lambda rank: be(rank, exchange_of(rank)), range(ranks)))
