"""Clocks of blocks and proxies in the kernel that runs the calls of a plan, as `PlanClocks` has them.

Where nothing ever happens without an order of memory, both rows of a clock are the same, and it has one.
"""

from __future__ import annotations

import numpy as np

from chorale.synth.kernels.compiled import inlined
from chorale.synth.programs.plans.call_state import FREE, HEAD, TAIL, THREADS, UNUSED, Knowledge
from chorale.synth.programs.plans.clocks import ORDERED


@inlined
def new_row(knowledge: Knowledge) -> int:
    """Take a free row of news."""
    row = knowledge.free[FREE]
    knowledge.free[FREE] = knowledge.next[row]
    knowledge.free[UNUSED] -= 1
    knowledge.next[row] = -1
    return int(row)


@inlined
def give_back(knowledge: Knowledge, row: int) -> None:
    """Let a row be free."""
    knowledge.next[row] = knowledge.free[FREE]
    knowledge.free[FREE] = row
    knowledge.free[UNUSED] += 1


@inlined
def append(knowledge: Knowledge, queue: int, row: int) -> None:
    """Put a row of news at the end of a queue."""
    last = knowledge.queues[queue, TAIL]
    if last < 0:
        knowledge.queues[queue, HEAD] = row
    else:
        knowledge.next[last] = row
    knowledge.queues[queue, TAIL] = row


@inlined
def take_first(knowledge: Knowledge, queue: int) -> int:
    """Take the first row of news out of a queue that has one."""
    row = knowledge.queues[queue, HEAD]
    following = knowledge.next[row]
    knowledge.queues[queue, HEAD] = following
    if following < 0:
        knowledge.queues[queue, TAIL] = -1
    knowledge.next[row] = -1
    return int(row)


@inlined
def join(knowledge: Knowledge, block: int) -> None:
    """All threads of `block` wait for each other."""
    clocks, news = knowledge.clocks, knowledge.news
    for which in range(clocks.shape[1]):
        clocks[block, which, block] = knowledge.times[block]
    for thread in range(THREADS):
        row = knowledge.threads[block, thread]
        if row >= 0:
            for which in range(knowledge.clocks.shape[1]):
                for component in range(clocks.shape[2]):
                    clocks[block, which, component] = max(clocks[block, which, component], news[row, which, component])
            give_back(knowledge, row)
            knowledge.threads[block, thread] = -1


@inlined
def hear(knowledge: Knowledge, block: int, thread: int, row: int) -> None:
    """Let one thread of `block` know what `row` says, which is its own from now on."""
    held = knowledge.threads[block, thread]
    if held < 0:
        knowledge.threads[block, thread] = row
        return
    news = knowledge.news
    for which in range(knowledge.clocks.shape[1]):
        for component in range(news.shape[2]):
            news[held, which, component] = max(news[held, which, component], news[row, which, component])
    give_back(knowledge, row)


@inlined
def write_knowledge(knowledge: Knowledge, block: int, thread: int, row: int) -> None:
    """Write into `row` of news what a thread may tell."""
    clocks, news = knowledge.clocks, knowledge.news
    held = knowledge.threads[block, thread]
    for which in range(knowledge.clocks.shape[1]):
        for component in range(clocks.shape[2]):
            news[row, which, component] = clocks[block, which, component]
        if held >= 0:
            for component in range(clocks.shape[2]):
                news[row, which, component] = max(news[row, which, component], news[held, which, component])


@inlined
def push(knowledge: Knowledge, block: int, thread: int, proxy: int) -> None:
    """Give a proxy something to do after what `thread` of `block` knows."""
    clocks, news = knowledge.clocks, knowledge.news
    held = knowledge.threads[block, thread]
    for which in range(knowledge.clocks.shape[1]):
        for component in range(clocks.shape[2]):
            clocks[proxy, which, component] = max(clocks[proxy, which, component], clocks[block, which, component])
            if held >= 0 and news[held, which, component] > clocks[proxy, which, component]:
                clocks[proxy, which, component] = news[held, which, component]
    knowledge.times[proxy] += 1
    for which in range(clocks.shape[1]):
        clocks[proxy, which, proxy] = knowledge.times[proxy]


@inlined
def copy_of(knowledge: Knowledge, owner: int) -> int:
    """Return a new row of news that says what `owner` knows."""
    row = new_row(knowledge)
    for which in range(knowledge.clocks.shape[1]):
        for component in range(knowledge.clocks.shape[2]):
            knowledge.news[row, which, component] = knowledge.clocks[owner, which, component]
    return row


@inlined
def tell(knowledge: Knowledge, block: int, thread: int, queue: int, proxy: int, relaxed: bool) -> None:
    """Tell a queue what `thread` of `block` knows, or its proxy after that."""
    if proxy >= 0:
        push(knowledge, block, thread, proxy)
        append(knowledge, queue, copy_of(knowledge, proxy))
        return
    row = new_row(knowledge)
    write_knowledge(knowledge, block, thread, row)
    if relaxed:
        forget_order(knowledge, row)
    append(knowledge, queue, row)


@inlined
def forget_order(knowledge: Knowledge, row: int) -> None:
    """Let `row` say only what happened."""
    for component in range(knowledge.news.shape[2]):
        knowledge.news[row, ORDERED, component] = np.int16(0)


@inlined
def meet(knowledge: Knowledge, block: int, first: int, end: int, barrier: int, blocks: int) -> bool:
    """Come to a barrier of the blocks from `first` to `end` of a rank; return whether `block` may go on."""
    if knowledge.met[block, 0] == barrier and knowledge.met[block, 1] == 1:
        knowledge.met[block, 0] = -1
        return True
    if knowledge.met[block, 0] != barrier:
        knowledge.met[block, 0], knowledge.met[block, 1] = barrier, 0
    here, released = 0, 0
    for other in range(first, end):
        if knowledge.met[other, 0] == barrier:
            here += 1
            released += knowledge.met[other, 1]
    if here < blocks or released > 0:
        return False
    for other in range(first, end):
        if knowledge.met[other, 0] == barrier:
            join(knowledge, other)
            merge_clocks(knowledge, block, other)
    for other in range(first, end):
        if knowledge.met[other, 0] == barrier:
            merge_clocks(knowledge, other, block)
            knowledge.met[other, 1] = 1
    knowledge.met[block, 0] = -1
    return True


@inlined
def merge_clocks(knowledge: Knowledge, owner: int, other: int) -> None:
    """Let `owner` know all that `other` knows."""
    clocks = knowledge.clocks
    for which in range(knowledge.clocks.shape[1]):
        for component in range(clocks.shape[2]):
            clocks[owner, which, component] = max(clocks[owner, which, component], clocks[other, which, component])
