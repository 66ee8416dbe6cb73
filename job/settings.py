"""What a job is told by its environment: the table, and what to do where it says nothing."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from chorale.job.table.layout import parse_table
from chorale.job.table.model import Table
from chorale.synth.errors import InvalidInput

TRANSPORTS = ("auto", "engine", "batched")
"""What moves the bytes of programs: the engine, for memory of the processor; batched sends and receives of the inner
backend, for every device; auto: the engine where it can, batches elsewhere."""


@dataclass(frozen=True, slots=True)
class JobSettings:
    """table: CHORALE_TABLE; strict: CHORALE_STRICT=1 refuses what the table does not cover; report: CHORALE_REPORT, a
    file or - for stderr; inner: CHORALE_INNER, the backend for the rest; interface: CHORALE_INTERFACE, a device;
    transport: CHORALE_TRANSPORT, see TRANSPORTS; reload_s: CHORALE_RELOAD, the seconds between two looks at the table's
    file for a new one, 0 for never; status: CHORALE_STATUS, a file in which the report is kept up to date."""

    table: Path | None = None
    strict: bool = False
    report: str | None = None
    inner: str | None = None
    interface: str | None = None
    transport: str = "auto"
    reload_s: float = 1.0
    status: str | None = None

    @staticmethod
    def from_environment(environment: Mapping[str, str] = os.environ) -> JobSettings:
        """Return what the variables say; InvalidInput for a CHORALE_STRICT other than 0 and 1, and for
        a CHORALE_TRANSPORT that is none of TRANSPORTS, and for a CHORALE_RELOAD that is no number of seconds."""
        strict = environment.get("CHORALE_STRICT") or "0"
        if strict not in ("0", "1"):
            raise InvalidInput("CHORALE_STRICT must be 0 or 1", strict, "set one of them, or none")
        transport = environment.get("CHORALE_TRANSPORT") or "auto"
        if transport not in TRANSPORTS:
            raise InvalidInput("CHORALE_TRANSPORT must be known", transport, f"choose from {', '.join(TRANSPORTS)}")
        table = environment.get("CHORALE_TABLE")
        # Return the seconds between two looks; InvalidInput unless `text` is empty or a number, 0 to an hour.
        text = environment.get("CHORALE_RELOAD")
        try:
            seconds = float(text or 1.0)
        except ValueError:
            seconds = -1.0
        if not 0 <= seconds <= 3600:
            rule = "CHORALE_RELOAD must be a number of seconds from 0, which is never, to 3600"
            raise InvalidInput(rule, text, "set such a number, or none for 1")
        return JobSettings(
            Path(table) if table else None,
            strict == "1",
            environment.get("CHORALE_REPORT") or None,
            environment.get("CHORALE_INNER") or None,
            environment.get("CHORALE_INTERFACE") or None,
            transport,
            seconds,
            environment.get("CHORALE_STATUS") or None,
        )


def read_table(path: Path) -> tuple[Table, str]:
    """Return the table in `path` and its digest. InvalidInput for a file that cannot be read or is no table."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InvalidInput("a tuning table must be a file that can be read", error, "name another") from error
    return parse_table(data)


def load_table(path: str | Path) -> Table:
    """Return the tuning table in the file at `path`, as a job reads it: its entries and programs.

    Loads none of the heavy libraries. InvalidInput for a file that cannot be read, is damaged or is no table.
    """
    return read_table(Path(path))[0]
