"""Switches to a new tuning table while a job runs: all ranks of a group switch at the same call, or none does.

All ranks issue the collectives of a group in the same order, so a call has the same number on all of them.

1. Rank 0 notices that the file of CHORALE_TABLE has a new digest and proposes this digest in the group's store.
2. Every rank waits until its own file has this digest, and connects an engine for its table while collectives continue.
3. Every rank announces a call number: it will wait for the decision before it executes this call.
4. Rank 0 decides: all ranks switch at the highest of these numbers, or keep the old table if a rank cannot switch.

A call only compares two numbers to find out whether it must wait. Calls that started before the switch still use the
previous table.
"""

import json
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from chorale.job import current_report
from chorale.job.group import StoreExchange, wait_for_keys
from chorale.job.settings import job_table
from chorale.job.table.layout import Table, file_digest
from chorale.job.torch.transport import LoadedTable
from chorale.synth.errors import InvalidInput, Unavailable


@dataclass(frozen=True, slots=True)
class GroupMember:
    """Describes this process as a member of a process group: its rank, the other members and their common store.

    members: ranks of the job in the group
    rank:    position of this process in `members`
    store:   torch store that only this group uses
    limit_s: maximum time that a member waits for other members
    """

    rank: int
    members: tuple[int, ...]
    store: Any
    limit_s: float

    def exchange(self, name: str = "chorale", is_stopped: Callable[[], bool] = lambda: False) -> StoreExchange:
        """Return an exchange among the members. `StoreExchange` explains `name` and `is_stopped`."""
        return StoreExchange(self.store, self.rank, len(self.members), self.limit_s, name, is_stopped)


class PeriodicThread:
    """Calls `turn` every `period_s` seconds until it returns False, `close` is called, or the main thread has ended.

    Python waits for the thread at exit. A pool thread would never end, because Python waits for pools while the main
    thread still counts as alive.
    """

    def __init__(self, name: str, period_s: float, turn: Callable[[], bool]) -> None:
        self._period_s, self._turn = period_s, turn
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name)
        self._thread.start()

    def is_over(self) -> bool:
        """Return whether the thread should end. Long calls of `turn` check this."""
        return self._stop.is_set() or not threading.main_thread().is_alive()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self.is_over() and self._turn():
            next_s = monotonic() + self._period_s
            while not self.is_over() and monotonic() < next_s:
                self._stop.wait(min(0.1, self._period_s))


_NEVER = sys.maxsize
_FILE_LIMIT_S = 15.0
"""Maximum time in seconds that a rank waits until its copy of the table file contains the proposed table."""

Load = Callable[[Table, str, StoreExchange], LoadedTable]


class TableReload:
    """Watches the table file of one group in a thread, and agrees with the other ranks when to switch to a new table.

    The threads that issue collectives increment `calls` and call `settle` at call number `hold`. The watching thread
    does everything else.

    calls: number of the group's calls so far
    hold:  number of the first call that must wait for the ranks' decision
    """

    def __init__(self, group: GroupMember, path: Path, digest: str, load: Load, period_s: float) -> None:
        """Watch the file at `path` from now on.

        digest:   digest of the current table
        load:     function that loads another table and connects this rank to the others for it
        period_s: time between two checks of the file
        """
        self._group, self._path, self._digest, self._load = group, path, digest, load
        self._name = ",".join(map(str, group.members))
        self.calls, self.hold = 0, _NEVER
        self._switch: tuple[int, LoadedTable] | None = None
        self._failure: str | None = None
        self._changed = threading.Condition()
        self._number = 0
        self._refused: dict[str, float] = {}
        self._thread = PeriodicThread(f"chorale-reload-{self._name}", period_s, self._look)

    def set_limit(self, limit_s: float) -> None:
        """Lower the time limit for connecting and deciding to `limit_s`. A larger value has no effect."""
        self._group = replace(self._group, limit_s=min(limit_s, self._group.limit_s))

    def close(self) -> None:
        self._thread.close()
        with self._changed:
            switch, self._switch = self._switch, None
        if switch is not None:
            switch[1].close()

    def settle(self) -> LoadedTable | None:
        """Return the table to use from this call on, or None to keep the current one.

        Raises Unavailable if the ranks' decision does not arrive.
        """
        with self._changed:
            limit_s = 3 * self._group.limit_s
            is_settled = self._changed.wait_for(lambda: self._switch or self._failure or self.hold == _NEVER, limit_s)
            if self._failure or not is_settled:
                rule = "the ranks could not agree when to switch to the new tuning table: {}"
                value = self._failure or f"no decision after {limit_s} s"
                raise Unavailable(rule, value, "see whether rank 0 of the group still runs, and start the job again")
            if self._switch is None or self.calls < self._switch[0]:
                self.hold = _NEVER if self._switch is None else self._switch[0]
                return None
            (call, loaded), self._switch, self.hold = self._switch, None, _NEVER
        self._digest = loaded.digest
        self._tell(loaded.digest, call, None)
        return loaded

    def _look(self) -> bool:
        """If there is a new table, try to agree with the other ranks to use it. Return whether to check again."""
        try:
            proposal = None if self._switch else self._proposal()
            if proposal is not None:
                self._negotiate(proposal)
        except RuntimeError as error:  # the job is ending and its store is gone
            self._fail(f"{type(error).__name__}: {error}")
            return False
        return True

    def _proposal(self) -> str | None:
        """Return the digest of the new table that rank 0 proposes, or None if there is none."""
        key = f"reload/{self._number + 1}/proposal"
        if self._group.rank == 0:
            digest = file_digest(self._path)
            if digest in (None, self._digest) or monotonic() < self._refused.get(str(digest), 0.0):
                return None
            self._group.store.set(key, str(digest))
        elif not self._group.store.check([key]):
            return None
        self._number += 1
        proposed: str = self._group.store.get(key).decode()
        return proposed

    def _negotiate(self, digest: str) -> None:
        store, prefix = self._group.store, f"reload/{self._number}"
        loaded, message = self._prepare(digest, prefix)
        store.set(f"{prefix}/ready/{self._group.rank}", json.dumps(message))
        if self._group.rank == 0:
            store.set(f"{prefix}/decision", json.dumps(self._decision(prefix)))
        if wait_for_keys(store, [f"{prefix}/decision"], 2 * self._group.limit_s, self._thread.is_over):
            self._fail("rank 0 of the group did not send its decision")
            return
        decision = json.loads(store.get(f"{prefix}/decision"))
        with self._changed:
            if "switch_at" in decision and loaded is not None:
                self._switch = int(decision["switch_at"]), loaded
                self._changed.notify_all()
                return
            self.hold = _NEVER
            self._changed.notify_all()
        self._refused[digest] = monotonic() + 30.0  # then it is proposed again
        if loaded is not None:
            loaded.close()
        self._tell(digest, None, str(decision.get("keep")))

    def _prepare(self, digest: str, prefix: str) -> tuple[LoadedTable | None, dict[str, Any]]:
        """Load the proposed table. Return it with the reply to the other ranks: the number of the call at which this
        rank waits, or the reason why it refuses the table.
        """
        exchange = self._group.exchange(f"{prefix}/rank", self._thread.is_over)
        try:
            loaded = self._load(self._read(digest), digest, exchange)
        except Exception as error:  # after any error, the other ranks must not wait for this one
            text = f"{type(error).__name__}: {error}"
            exchange.give_up(text)
            return None, {"error": text}
        while True:  # allow at most two more calls before the decision, which takes milliseconds
            self.hold = hold = self.calls + 3
            if self.calls < hold:  # the next call's thread is certain to see `hold`
                return loaded, {"hold": hold}

    def _read(self, digest: str) -> Table:
        """Wait until this rank's file has `digest`, then check and return its table."""
        deadline_s = monotonic() + _FILE_LIMIT_S
        while file_digest(self._path) != digest and monotonic() < deadline_s and not self._thread.is_over():
            sleep(0.05)
        table, seen = job_table(self._path)
        if seen != digest:
            rule = "a rank has another new tuning table: {}"
            raise InvalidInput(rule, f"{seen[:12]} instead of {digest[:12]}", "give all of them the same file")
        return table

    def _decision(self, prefix: str) -> dict[str, Any]:
        keys = [f"{prefix}/ready/{rank}" for rank in range(len(self._group.members))]
        if missing := wait_for_keys(self._group.store, keys, self._group.limit_s, self._thread.is_over):
            ranks = ", ".join(key.rsplit("/", 1)[1] for key in missing)
            return {"keep": f"no message from ranks {ranks} of the group"}
        messages = [json.loads(self._group.store.get(key)) for key in keys]
        errors = [f"rank {rank}: {message['error']}" for rank, message in enumerate(messages) if "error" in message]
        return {"keep": errors[0]} if errors else {"switch_at": max(message["hold"] for message in messages)}

    def _fail(self, text: str) -> None:
        """Let all current and later calls that wait for the decision fail with the message `text`, if there are any."""
        with self._changed:
            if self.hold != _NEVER and self._switch is None:
                self._failure = text
            self._changed.notify_all()

    def _tell(self, digest: str, call: int | None, reason: str | None) -> None:
        current_report().note_reload(self._name, digest, call, reason)
        if self._group.rank == 0:
            what = f"runs from call {call} on" if reason is None else f"is not taken: {reason}"
            sys.stderr.write(f"chorale: table {digest[:12]} {what} (group of {len(self._group.members)} ranks)\n")
