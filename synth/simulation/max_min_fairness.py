"""Max-min fair shares of links among the messages that are on their way, updated only where something changed.

A set of rates is max-min fair if every message has a link on its route that is full and on which no other message
is faster. Filling finds it: the link with the smallest fair share is full first; its messages keep that rate, and
what they take is no longer there for others. Source: Bertsekas and Gallager, "Data Networks", section 6.5.2.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.kernels.compiled import inlined
from chorale.synth.kernels.heap import EventHeap, drop_first, push, schedule_event

RELATIVE_TOLERANCE = 1e-12
"""Relative differences up to here are rounding."""


class MessagePaths(NamedTuple):
    """Where messages travel: message m uses `link_ids[first[m] : first[m] + hops[m]]`.

    Its entries in the lists of its links are `slot[m]` and following.
    """

    link_ids: NDArray[np.int32]
    first: NDArray[np.int64]
    hops: NDArray[np.int32]
    slot: NDArray[np.int64]
    capacity: NDArray[np.float64]


class FairShares(NamedTuple):
    """Rates of messages and, per link, a doubly linked list of the slots of messages that use it now.

    remaining[m] is what message m had still to send at time since[m]; rate[m] is its rate from then on.
    """

    remaining: NDArray[np.float64]
    rate: NDArray[np.float64]
    since: NDArray[np.float64]
    head: NDArray[np.int32]
    users: NDArray[np.int32]
    after: NDArray[np.int32]
    before: NDArray[np.int32]
    owner: NDArray[np.int32]

    @staticmethod
    def of(links: int, messages: int, slots: int) -> FairShares:
        """Return empty links; `slots` are the links of the routes of all messages together."""
        return FairShares(
            np.zeros(messages), np.zeros(messages), np.zeros(messages), np.full(links, -1, np.int32),
            np.zeros(links, np.int32), np.empty(slots, np.int32), np.empty(slots, np.int32), np.empty(slots, np.int32),
        )  # fmt: skip


class Scratch(NamedTuple):
    """Work space of `update_rates`: marks hold the number of the last round in which an entry was visited."""

    round: NDArray[np.int64]
    link_mark: NDArray[np.int64]
    message_mark: NDArray[np.int64]
    touched: NDArray[np.int32]
    free_capacity: NDArray[np.float64]
    unfixed: NDArray[np.int32]
    keys: NDArray[np.float64]
    nodes: NDArray[np.int32]

    @staticmethod
    def of(links: int, messages: int) -> Scratch:
        """Return work space for this many links and messages."""
        return Scratch(
            np.ones(1, np.int64), np.zeros(links, np.int64), np.zeros(messages, np.int64), np.empty(links, np.int32),
            np.empty(links), np.empty(links, np.int32), np.empty(links), np.empty(links, np.int32),
        )  # fmt: skip


@inlined
def add_message(paths: MessagePaths, shares: FairShares, message: int, amount: float, now: float) -> None:
    """Let `message` onto the links of its route, at rate 0 until the next `update_rates`."""
    shares.remaining[message], shares.rate[message], shares.since[message] = amount, 0.0, now
    for hop in range(paths.hops[message]):
        link, slot = paths.link_ids[paths.first[message] + hop], paths.slot[message] + hop
        follower = shares.head[link]
        shares.before[slot], shares.after[slot], shares.owner[slot] = -1, follower, message
        if follower >= 0:
            shares.before[follower] = slot
        shares.head[link] = slot
        shares.users[link] += 1


@inlined
def remove_message(paths: MessagePaths, shares: FairShares, message: int) -> None:
    """Take `message` off its links."""
    for hop in range(paths.hops[message]):
        link, slot = paths.link_ids[paths.first[message] + hop], paths.slot[message] + hop
        before, after = shares.before[slot], shares.after[slot]
        if before >= 0:
            shares.after[before] = after
        else:
            shares.head[link] = after
        if after >= 0:
            shares.before[after] = before
        shares.users[link] -= 1


@inlined
def mark_links(paths: MessagePaths, scratch: Scratch, touched: int, message: int) -> int:
    """Note the links of `message` as changed, after the first `touched` that are; return how many there are now."""
    for position in range(paths.first[message], paths.first[message] + paths.hops[message]):
        link = paths.link_ids[position]
        if scratch.link_mark[link] != scratch.round[0]:
            scratch.link_mark[link] = scratch.round[0]
            scratch.touched[touched] = link
            touched += 1
    return touched


@inlined
def update_rates(
    paths: MessagePaths, shares: FairShares, scratch: Scratch, touched: int, heap: EventHeap, now: float
) -> None:
    """Make the rates fair again after a change on the first `touched` links of the scratch; move their events.

    Only messages that share links with the changed ones, directly or through others, are looked at.
    """
    touched = _spread(paths, shares, scratch, touched)
    _fill(paths, shares, scratch, touched, heap, now)
    scratch.round[0] += 1


@inlined
def _spread(paths: MessagePaths, shares: FairShares, scratch: Scratch, touched: int) -> int:
    """Add every link that messages connect to the touched ones; return how many there are."""
    index = 0
    while index < touched:
        slot = shares.head[scratch.touched[index]]
        while slot >= 0:
            message = shares.owner[slot]
            if scratch.message_mark[message] != scratch.round[0]:
                scratch.message_mark[message] = scratch.round[0]
                touched = mark_links(paths, scratch, touched, message)
            slot = shares.after[slot]
        index += 1
    return touched


@inlined
def _fill(paths: MessagePaths, shares: FairShares, scratch: Scratch, touched: int, heap: EventHeap, now: float) -> None:
    size = 0
    for index in range(touched):
        link = scratch.touched[index]
        scratch.free_capacity[link], scratch.unfixed[link] = paths.capacity[link], shares.users[link]
        if shares.users[link] > 0:
            size = push(scratch.keys, scratch.nodes, size, paths.capacity[link] / shares.users[link], link)
    level = 0.0
    while size > 0:
        key, link = scratch.keys[0], scratch.nodes[0]
        size = drop_first(scratch.keys, scratch.nodes, size)
        if scratch.unfixed[link] == 0:
            continue
        # Shares only rise while others are fixed, so an outdated entry is too small: push its present value.
        current = max(level, scratch.free_capacity[link] / scratch.unfixed[link])
        if current > key * (1 + RELATIVE_TOLERANCE):
            size = push(scratch.keys, scratch.nodes, size, current, link)
            continue
        level = current
        slot = shares.head[link]
        while slot >= 0:
            message = shares.owner[slot]
            if scratch.message_mark[message] == scratch.round[0]:
                scratch.message_mark[message] = -scratch.round[0]
                _take(paths, scratch, message, level)
                _set_rate(shares, heap, message, level, now)
            slot = shares.after[slot]


@inlined
def _take(paths: MessagePaths, scratch: Scratch, message: int, rate: float) -> None:
    for position in range(paths.first[message], paths.first[message] + paths.hops[message]):
        link = paths.link_ids[position]
        scratch.free_capacity[link] -= rate
        scratch.unfixed[link] -= 1


@inlined
def _set_rate(shares: FairShares, heap: EventHeap, message: int, rate: float, now: float) -> None:
    old = shares.rate[message]
    if abs(rate - old) <= RELATIVE_TOLERANCE * old:
        return
    sent = old * (now - shares.since[message])
    remaining = max(0.0, shares.remaining[message] - sent)
    shares.remaining[message], shares.rate[message], shares.since[message] = remaining, rate, now
    schedule_event(heap, message, now + remaining / rate)
