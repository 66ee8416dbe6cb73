"""A tuning table as one group runs it: what it says for the group, and what moves the bytes of its programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from chorale.job.table.lookup import GroupEntries
from chorale.job.torch.transport import Transport


@dataclass(frozen=True, slots=True)
class LoadedTable:
    """digest: of the table, empty without one; entries: None without a table

    transports: by type of device
    owned:      those that end with this table; others serve several tables
    """

    digest: str
    entries: GroupEntries | None
    transports: Mapping[str, Transport] = field(default_factory=dict)
    owned: tuple[Transport, ...] = ()

    def close(self) -> None:
        """End the connections of this table alone. Safe to call twice."""
        for transport in self.owned:
            transport.close()
