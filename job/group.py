"""The engine of one job group: connected to the group's other ranks, with the table's programs loaded."""

import secrets
from collections.abc import Callable, Sequence

from chorale.job import current_report
from chorale.job.table.layout import unpack
from chorale.job.table.lookup import GroupEntries
from chorale.job.table.model import Table
from chorale.runners.engine.library import TOKEN_BYTES, Devices, Engine, addresses_for, listen
from chorale.synth.errors import InvalidInput

Exchange = Callable[[list[str]], list[list[str]]]
"""Sends this rank's strings to the group and returns the strings of all ranks, by rank. All ranks call it."""


class GroupEngine(Engine):
    """An engine that runs a table's programs for `group` (ranks of the job).

    entries:  the table's entries for this group
    programs: digest of each loaded program -> its number in the engine

    Not thread-safe. All ranks start the same runs in the same order, one after another.
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

        Raises InvalidInput, naming the ranks, if their tables differ, and EngineError if ranks cannot connect.
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
    """Raise InvalidInput, naming the ranks with each digest, unless all `digests` are identical."""
    ranks: dict[str, list[int]] = {}
    for rank, digest in zip(group, digests, strict=True):
        ranks.setdefault(digest, []).append(rank)
    if len(ranks) > 1:
        texts = (f"ranks {', '.join(map(str, each))}: {digest[:12] or 'none'}" for digest, each in ranks.items())
        rule = "the ranks of the job have different tuning tables: {}"
        raise InvalidInput(rule, "; ".join(texts), "give all of them the same file in CHORALE_TABLE")
