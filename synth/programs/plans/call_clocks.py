"""Clocks of blocks and proxies in the kernel that runs the calls of a plan, as `PlanClocks` has them."""

from __future__ import annotations

import numpy as np

from chorale.synth.kernels.compiled import inlined
from chorale.synth.programs.plans.call_state import FREE, HEAD, TAIL, THREADS, UNUSED, Known
from chorale.synth.programs.plans.clocks import HAPPENED, ORDERED


@inlined
def new_row(known: Known) -> int:
    """Take a free row of news."""
    row = known.free[FREE]
    known.free[FREE] = known.next[row]
    known.free[UNUSED] -= 1
    known.next[row] = -1
    return int(row)


@inlined
def give_back(known: Known, row: int) -> None:
    """Let a row be free."""
    known.next[row] = known.free[FREE]
    known.free[FREE] = row
    known.free[UNUSED] += 1


@inlined
def append(known: Known, queue: int, row: int) -> None:
    """Put a row of news at the end of a queue."""
    last = known.queues[queue, TAIL]
    if last < 0:
        known.queues[queue, HEAD] = row
    else:
        known.next[last] = row
    known.queues[queue, TAIL] = row


@inlined
def take_first(known: Known, queue: int) -> int:
    """Take the first row of news out of a queue that has one."""
    row = known.queues[queue, HEAD]
    following = known.next[row]
    known.queues[queue, HEAD] = following
    if following < 0:
        known.queues[queue, TAIL] = -1
    known.next[row] = -1
    return int(row)


@inlined
def join(known: Known, block: int) -> None:
    """All threads of `block` wait for each other."""
    clocks, news = known.clocks, known.news
    clocks[block, ORDERED, block] = known.times[block]
    clocks[block, HAPPENED, block] = known.times[block]
    for thread in range(THREADS):
        row = known.threads[block, thread]
        if row >= 0:
            for which in range(2):
                for component in range(clocks.shape[2]):
                    clocks[block, which, component] = max(clocks[block, which, component], news[row, which, component])
            give_back(known, row)
            known.threads[block, thread] = -1


@inlined
def hear(known: Known, block: int, thread: int, row: int) -> None:
    """Let one thread of `block` know what `row` says, which is its own from now on."""
    held = known.threads[block, thread]
    if held < 0:
        known.threads[block, thread] = row
        return
    news = known.news
    for which in range(2):
        for component in range(news.shape[2]):
            news[held, which, component] = max(news[held, which, component], news[row, which, component])
    give_back(known, row)


@inlined
def write_knowledge(known: Known, block: int, thread: int, row: int) -> None:
    """Write into `row` of news what a thread may tell."""
    clocks, news = known.clocks, known.news
    held = known.threads[block, thread]
    for which in range(2):
        for component in range(clocks.shape[2]):
            news[row, which, component] = clocks[block, which, component]
        if held >= 0:
            for component in range(clocks.shape[2]):
                news[row, which, component] = max(news[row, which, component], news[held, which, component])


@inlined
def push(known: Known, block: int, thread: int, proxy: int) -> None:
    """Give a proxy something to do after what `thread` of `block` knows."""
    clocks, news = known.clocks, known.news
    held = known.threads[block, thread]
    for which in range(2):
        for component in range(clocks.shape[2]):
            clocks[proxy, which, component] = max(clocks[proxy, which, component], clocks[block, which, component])
            if held >= 0 and news[held, which, component] > clocks[proxy, which, component]:
                clocks[proxy, which, component] = news[held, which, component]
    known.times[proxy] += 1
    clocks[proxy, ORDERED, proxy] = known.times[proxy]
    clocks[proxy, HAPPENED, proxy] = known.times[proxy]


@inlined
def copy_of(known: Known, owner: int) -> int:
    """Return a new row of news that says what `owner` knows."""
    row = new_row(known)
    for which in range(2):
        for component in range(known.clocks.shape[2]):
            known.news[row, which, component] = known.clocks[owner, which, component]
    return row


@inlined
def tell(known: Known, block: int, thread: int, queue: int, proxy: int, relaxed: bool) -> None:
    """Tell a queue what `thread` of `block` knows, or its proxy after that."""
    if proxy >= 0:
        push(known, block, thread, proxy)
        append(known, queue, copy_of(known, proxy))
        return
    row = new_row(known)
    write_knowledge(known, block, thread, row)
    if relaxed:
        forget_order(known, row)
    append(known, queue, row)


@inlined
def forget_order(known: Known, row: int) -> None:
    """Let `row` say only what happened."""
    for component in range(known.news.shape[2]):
        known.news[row, ORDERED, component] = np.int32(0)


@inlined
def meet(known: Known, block: int, first: int, end: int, barrier: int, blocks: int) -> bool:
    """Come to a barrier of the blocks from `first` to `end` of a rank; return whether `block` may go on."""
    if known.met[block, 0] == barrier and known.met[block, 1] == 1:
        known.met[block, 0] = -1
        return True
    if known.met[block, 0] != barrier:
        known.met[block, 0], known.met[block, 1] = barrier, 0
    here, released = 0, 0
    for other in range(first, end):
        if known.met[other, 0] == barrier:
            here += 1
            released += known.met[other, 1]
    if here < blocks or released > 0:
        return False
    for other in range(first, end):
        if known.met[other, 0] == barrier:
            join(known, other)
            merge_clocks(known, block, other)
    for other in range(first, end):
        if known.met[other, 0] == barrier:
            merge_clocks(known, other, block)
            known.met[other, 1] = 1
    known.met[block, 0] = -1
    return True


@inlined
def merge_clocks(known: Known, owner: int, other: int) -> None:
    """Let `owner` know all that `other` knows."""
    clocks = known.clocks
    for which in range(2):
        for component in range(clocks.shape[2]):
            clocks[owner, which, component] = max(clocks[owner, which, component], clocks[other, which, component])
