"""Connects the ranks of a group: the ranks exchange strings to connect their engines, which run the programs."""

import json
import secrets
from collections.abc import Callable, Sequence
from time import monotonic, sleep
from typing import Any

from chorale.job import current_report
from chorale.job.table.layout import GroupEntries, Table, unpack
from chorale.runners.engine.library import TOKEN_BYTES, Devices, Engine, addresses_for, listen
from chorale.synth.errors import InvalidInput, Unavailable

Exchange = Callable[[list[str]], list[list[str]]]
"""Sends this rank's strings to the group; returns all ranks' strings, indexed by rank. All ranks must call it."""


class GroupEngine(Engine):
    """Runs a tuning table's programs on a group of ranks. This rank's engine is connected to the other ranks' engines.

    entries:  the table's entries for this group
    programs: maps the digest of each loaded program to the program's number in the engine

    Not thread-safe. All ranks must start the same runs in the same order, one after another.
    """

    def __init__(
        self,
        table: Table,
        table_digest: str,
        group: Sequence[int],
        rank: int,
        exchange: Exchange,
        devices: Devices = Devices(),  # noqa: B008 - it never changes
        limit_s: float = 60.0,
    ) -> None:
        """Connect to the engines of the group's other ranks. All ranks call this together.

        rank: position of this process in `group`

        Raises InvalidInput if the ranks have different tables (the error lists the ranks), and EngineError if ranks
        cannot connect.
        """
        self.entries = GroupEntries.of(table, group)
        current_report().note_orders(table.programs.values())
        super().__init__(rank, len(group))
        own = [table_digest, secrets.token_hex(TOKEN_BYTES), *listen(self, devices)]
        everyone = exchange(own)
        require_one_table(group, [digest for digest, *_ in everyone])
        named = {entry.program for entry in self.entries.entries if entry.program is not None}
        wanted = {digest for digest in named if not table.programs[digest].is_plan}
        self.programs = {digest: self.load(unpack(table.programs[digest].words[rank])) for digest in sorted(wanted)}
        addresses = addresses_for(own[2:], [texts[2:] for texts in everyone])
        self.connect(addresses, bytes.fromhex(everyone[0][1]), limit_s)
        self.set("listening", 0)


def require_one_table(group: Sequence[int], digests: Sequence[str]) -> None:
    """Raise InvalidInput unless all `digests` are identical. The error lists the ranks that have each digest."""
    ranks: dict[str, list[int]] = {}
    for rank, digest in zip(group, digests, strict=True):
        ranks.setdefault(digest, []).append(rank)
    if len(ranks) > 1:
        texts = (f"ranks {', '.join(map(str, each))}: {digest[:12] or 'none'}" for digest, each in ranks.items())
        rule = "the ranks of the job have different tuning tables: {}"
        raise InvalidInput(rule, "; ".join(texts), "give all of them the same file in CHORALE_TABLE")


def wait_for_keys(
    store: Any, keys: Sequence[str], limit_s: float, is_stopped: Callable[[], bool] = lambda: False
) -> list[str]:
    """Wait until `store` has all `keys`, `limit_s` has passed, or `is_stopped` returns true. Return the missing keys.

    store: torch store, or another object with the methods `check`, `get` and `set`

    The function polls, because a blocking wait on a torch store blocks all other threads that use the same client.
    """
    deadline_s = monotonic() + limit_s
    while missing := [key for key in keys if not store.check([key])]:
        if monotonic() > deadline_s or is_stopped():
            return missing
        sleep(0.02)
    return []


class StoreExchange:
    """Exchanges strings among the ranks of a group through `store` (see `wait_for_keys`). Each call is one exchange."""

    def __init__(
        self,
        store: Any,
        rank: int,
        ranks: int,
        limit_s: float,
        name: str = "chorale",
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """Prepare an exchange. `name` must be unique in the store; `is_stopped` returns whether to stop waiting."""
        self._store, self._rank, self._ranks, self._limit_s = store, rank, ranks, limit_s
        self._name, self._is_stopped = name, is_stopped
        self._turn = 0

    def __call__(self, texts: list[str]) -> list[list[str]]:
        """Send `texts` to the other ranks; return the strings of every rank. Raises Unavailable if a rank gave up."""
        self._set({"texts": texts})
        keys = [f"{self._name}/{self._turn}/{rank}" for rank in range(self._ranks)]
        self._turn += 1
        if missing := wait_for_keys(self._store, keys, self._limit_s, self._is_stopped):
            ranks = ", ".join(key.rsplit("/", 1)[1] for key in missing)
            rule = f"all ranks of a group must connect within {self._limit_s} s"
            raise Unavailable(rule, f"no message from ranks {ranks} of the group", "check what these ranks do")
        values = [json.loads(self._store.get(key)) for key in keys]
        errors = [f"rank {rank} of the group: {each['error']}" for rank, each in enumerate(values) if "error" in each]
        if errors:
            rule, way_out = "some ranks cannot run programs: {}", "see the messages of these ranks"
            raise Unavailable(rule, "; ".join(errors), way_out)
        return [value["texts"] for value in values]

    def give_up(self, reason: str) -> None:
        """Tell the other ranks that this rank will not participate. Has no effect once this rank has sent strings."""
        if self._turn == 0:
            self._set({"error": reason})

    def _set(self, value: dict[str, Any]) -> None:
        self._store.set(f"{self._name}/{self._turn}/{self._rank}", json.dumps(value))
