"""Reads a job's settings from environment variables, and the tuning table that they name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from chorale.job.files import read_file
from chorale.job.table.layout import MAX_TABLE_BYTES, Table, parse_table, require_signature
from chorale.synth.errors import InvalidInput, Unavailable

TRANSPORTS = ("auto", "engine", "batched", "stand-in")
"""Ways to move the data of programs.

engine:   the engine; only for CPU memory
batched:  batched sends and receives of the inner backend; for every device
auto:     the engine for CPU memory, batched messages for other devices, and kernels for plans
stand-in: like `auto`, but plans run on CPUs instead of GPUs; for tests
"""

_PLAN_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class JobSettings:
    """The settings of a job. Each one comes from an environment variable:

    table:      CHORALE_TABLE, path of the tuning table
    strict:     CHORALE_STRICT=1 refuses calls without an entry
    report:     CHORALE_REPORT, path of the report, or - for stderr
    inner:      CHORALE_INNER, the backend for calls without a program
    interface:  CHORALE_INTERFACE, the network device for the engine's connections
    transport:  CHORALE_TRANSPORT, see TRANSPORTS
    reload_s:   CHORALE_RELOAD, seconds between two checks for a new table file; 0 for never
    status:     CHORALE_STATUS, path of a report that is updated while the job runs
    plan_bytes: CHORALE_PLAN_BYTES, size of the largest vector for which GPU memory is reserved; only for plans
                (programs that run as GPU kernels)
    wide_sums:  CHORALE_PLAN_WIDE_SUMS=1 makes plans add 16-bit floats in float32
    """

    table: Path | None = None
    strict: bool = False
    report: str | None = None
    inner: str | None = None
    interface: str | None = None
    transport: str = "auto"
    reload_s: float = 1.0
    status: str | None = None
    plan_bytes: int = _PLAN_BYTES
    wide_sums: bool = False

    @staticmethod
    def from_environment(environment: Mapping[str, str] = os.environ) -> JobSettings:
        """Read the settings from environment variables. Raises InvalidInput for an invalid value."""
        flags = {name: environment.get(name) or "0" for name in ("CHORALE_STRICT", "CHORALE_PLAN_WIDE_SUMS")}
        for name, flag in flags.items():
            if flag not in ("0", "1"):
                raise InvalidInput(f"{name} must be 0 or 1", flag, "set one of them, or unset it")
        transport = environment.get("CHORALE_TRANSPORT") or "auto"
        if transport not in TRANSPORTS:
            raise InvalidInput("unknown CHORALE_TRANSPORT '{}'", transport, f"choose from {', '.join(TRANSPORTS)}")
        table = environment.get("CHORALE_TABLE")
        # Seconds between two checks of the table's file: 0 (never) to an hour.
        text = environment.get("CHORALE_RELOAD")
        try:
            seconds = float(text or 1.0)
        except ValueError:
            seconds = -1.0
        if not 0 <= seconds <= 3600:
            rule = "CHORALE_RELOAD must be a number of seconds from 0 (never) to 3600"
            raise InvalidInput(rule, text, "set such a number, or unset it for 1 s")
        plan_bytes = environment.get("CHORALE_PLAN_BYTES") or str(_PLAN_BYTES)
        if not plan_bytes.isdecimal() or not 0 < int(plan_bytes) < 2**40:
            raise InvalidInput(
                "CHORALE_PLAN_BYTES must be a number of bytes", plan_bytes, "set one, or unset it for 64 MiB"
            )
        return JobSettings(
            Path(table) if table else None,
            flags["CHORALE_STRICT"] == "1",
            environment.get("CHORALE_REPORT") or None,
            environment.get("CHORALE_INNER") or None,
            environment.get("CHORALE_INTERFACE") or None,
            transport,
            seconds,
            environment.get("CHORALE_STATUS") or None,
            int(plan_bytes),
            flags["CHORALE_PLAN_WIDE_SUMS"] == "1",
        )


def _file_of_table(path: Path) -> bytes:
    try:
        return read_file(path, MAX_TABLE_BYTES)
    except InvalidInput as error:
        raise InvalidInput("cannot read the tuning table: {}", error.value, "check the path") from error


def read_table(path: Path) -> tuple[Table, str]:
    """Return the table in the file at `path` and its digest.

    Raises InvalidInput if the file is unreadable, or if an entry's program is missing.
    """
    table, digest = parse_table(_file_of_table(path))
    for entry in table.entries:
        if entry.program is not None and entry.program not in table.programs:
            rule = "an entry of the tuning table names a program that is not in it: {}"
            raise InvalidInput(rule, f"digest {entry.program[:12]}", "see chorale table verify")
    return table, digest


def job_table(path: Path) -> tuple[Table, str]:
    """Return the table at `path` and its digest, after checking everything that a job would run.

    Raises InvalidInput if the file is unreadable or not a table, if CHORALE_TABLE_KEY is set and the table is not
    signed with that key, or if `checked_table` finds a violation, such as a program that does not compute its
    collective or whose encoding for the engine differs from its text.
    The digests of tables that passed the check are stored in a private folder of this user. If several processes start
    together, only one of them checks the table.
    """
    data = _file_of_table(path)
    table, digest = parse_table(data)
    key = table_key()
    if key is not None:
        require_signature(data, key)
    # The user's private folder with the digests of tables that passed the check
    from chorale.runners.engine.build import native_folder  # noqa: PLC0415 - only in jobs
    from chorale.runners.measurement.private_files import make_private  # noqa: PLC0415 - only in jobs
    from chorale.version import __version__  # noqa: PLC0415 - it reads files

    folder = native_folder().parent / "tables"
    if not make_private(folder):
        raise Unavailable(
            "digests of checked programs cannot be stored in {}", str(folder), "set XDG_CACHE_HOME to one"
        )
    mark = folder / f"{digest}-{__version__}"
    if mark.exists():
        return table, digest
    from chorale.job.table.verification import checked_table  # noqa: PLC0415 - only for tables not checked before
    from chorale.runners.measurement.machine import acquire_lock  # noqa: PLC0415 - as above

    busy = Unavailable(
        "the check of the tuning table took too long: {}", "another process is checking one", "try again"
    )
    lock = acquire_lock(mark.parent / "lock", 300.0, busy)
    try:
        violations = [] if mark.exists() else checked_table(data)[1]
        if not violations:
            mark.touch(mode=0o600)
    finally:
        lock.release()
    for violation in violations:
        program = "" if violation.program is None else f"program {violation.program[:12]}: "
        rule = f"a job runs only correct tables ({violation.rule})"
        raise InvalidInput(
            rule, f"{program}{violation.message}", "see all violations with chorale table verify, and write it again"
        )
    return table, digest


def table_key() -> bytes | None:
    """Return the table signature key from the file that CHORALE_TABLE_KEY names, or None if the variable is unset.

    Raises InvalidInput if others may read the file, or if it has fewer than 16 characters.
    """
    from chorale.runners.measurement.private_files import read_secret  # noqa: PLC0415 - only if there is a key

    name = os.environ.get("CHORALE_TABLE_KEY")
    if not name:
        return None
    try:
        return read_secret(Path(name), "make one: (umask 077; openssl rand -hex 32 > table.key)").encode()
    except OSError as error:
        rule, way_out = "cannot read the file of CHORALE_TABLE_KEY: {}", "name another, or unset it"
        raise InvalidInput(rule, f"{name}: {error.strerror}", way_out) from error


def load_table(path: str | Path) -> Table:
    """Return the tuning table in the file at `path`, as a job reads it: its entries and programs.

    Imports no heavy libraries. Raises InvalidInput if the file cannot be read, is damaged or is not a table.
    """
    return read_table(Path(path))[0]
