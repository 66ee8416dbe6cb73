"""Counts a job's calls, bytes and seconds, separately for programs and for fallbacks to the library."""

import threading
from collections.abc import Iterable
from typing import Any

from chorale.job.table.layout import TableProgram
from chorale.synth.collective import CollectiveName

_MOST_SIZES = 4096


class JobReport:
    """Counts the calls of one process, and formats the counts as a report. Thread-safe.

    table: digest of the table; None without a table
    ranks: number of ranks of the job
    """

    def __init__(self, table: str | None = None, ranks: int = 0) -> None:
        self.table = table
        self.ranks = ranks
        self._lock = threading.Lock()
        self._programs: dict[tuple[str, ...], list[float]] = {}
        self._fallbacks: dict[tuple[str, ...], list[float]] = {}
        self._orders: dict[str, str | None] = {}
        self._reloads: list[dict[str, Any]] = []
        self._sizes: dict[tuple[str, str, int], list[float]] = {}
        self._exchanges = {"calls": 0, "bytes": 0, "seconds": 0.0}

    def note_reload(self, group: str, table: str, call: int | None, reason: str | None) -> None:
        """Record a group's decision about the new table with the digest `table`.

        call:   number of the group's first call with the new table; None if the group refused the table
        reason: why the group refused the table; None if it did not
        """
        with self._lock:
            self._reloads.append({"group": group, "table": table, "from_call": call, "kept_because": reason})

    def note_orders(self, programs: Iterable[TableProgram]) -> None:
        """Store the order in which each program adds ranks' values. Call this before counting runs of `programs`."""
        with self._lock:
            for program in programs:  # None: the order may differ between runs or ranks
                order = program.order_of_additions
                is_fixed = order and order["fixed"] and order["same_on_all_ranks"]
                self._orders[program.digest] = str(order["digest"]) if order and is_fixed else None

    def count_program(self, digest: str, collective: str, size_bytes: int, seconds: float, by: str = "engine") -> None:
        """Count a run of a program. `by` is the name of the transport that moved the data."""
        self._add(self._programs, (digest, collective, by), size_bytes, seconds)
        with self._lock:
            key = digest, collective, size_bytes
            if key in self._sizes or len(self._sizes) < _MOST_SIZES:
                count = self._sizes.setdefault(key, [0, 0.0, 0.0])
                count[0] += 1
                count[1] += seconds
                count[2] += seconds**2

    def count_fallback(self, reason: str, collective: str, size_bytes: int) -> None:
        self._add(self._fallbacks, (reason, collective), size_bytes, 0.0)

    def count_exchange(self, size_bytes: int, seconds: float) -> None:
        """Count an exchange of shard sizes. Ranks exchange them before a call whose shards may differ in size."""
        with self._lock:
            for name, value in (("calls", 1), ("bytes", size_bytes), ("seconds", seconds)):
                self._exchanges[name] += value

    def to_json(self) -> dict[str, Any]:
        """Return the report as written to the file that CHORALE_REPORT names."""
        with self._lock:
            names = "digest", "collective", "by", "calls", "bytes", "seconds"
            programs = [
                dict(zip(names, (*key, int(calls), int(size), seconds), strict=True))
                for key, (calls, size, seconds) in sorted(self._programs.items())
            ]
            fallbacks = [
                {"reason": key[0], "collective": key[1], "calls": int(calls), "bytes": int(size)}
                for key, (calls, size, _) in sorted(self._fallbacks.items())
            ]
            # Results so far are reproducible if all reductions ran as programs, and all calls of a collective used the
            # same proven order of additions
            orders: dict[str, set[str | None]] = {}
            for digest, collective, _ in self._programs:
                if CollectiveName(collective).reduces:
                    orders.setdefault(collective, set()).add(self._orders.get(digest))
            fixed = not any(CollectiveName(collective).reduces for _, collective in self._fallbacks)
            fixed = fixed and all(len(each) == 1 and None not in each for each in orders.values())
            reloads, exchanges = list(self._reloads), dict(self._exchanges)
        return {
            "table": self.table,
            "ranks": self.ranks,
            "programs": programs,
            "fallbacks": fallbacks,
            "exchanges": exchanges,
            "deterministic": fixed,
            "reloads": reloads,
        }

    def sizes(self) -> list[dict[str, Any]]:
        """Return calls, sum of seconds and sum of squared seconds for each program and size (at most 4,096 pairs)."""
        names = "digest", "collective", "size_bytes", "calls", "seconds", "seconds_squared"
        with self._lock:
            counts = sorted(self._sizes.items())
        return [
            dict(zip(names, (*key, int(calls), seconds, squares), strict=True))
            for key, (calls, seconds, squares) in counts
        ]

    def _add(self, counts: dict[tuple[str, ...], list[float]], key: tuple[str, ...], size: int, seconds: float) -> None:
        with self._lock:
            count = counts.setdefault(key, [0, 0, 0.0])
            count[0] += 1
            count[1] += size
            count[2] += seconds
