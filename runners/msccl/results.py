"""What a launch says: times, why there are none, and whether the runtime executed the program or fell back silently."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from chorale.runners.api.base import FailureKind
from chorale.runners.api.units import format_size
from chorale.runners.msccl.output_parser import LaunchOutput, parse_output
from chorale.runners.msccl.runtimes import Runtime
from chorale.runners.process_launch.placement import RankHost

SAME_TIME_TOLERANCE = 0.03
"""Medians that are no further apart at any size may be of one and the same algorithm."""

_REFUSED = re.compile(r"NCCL WARN (.*MSCCL.*)", re.IGNORECASE)


def log_fault(runtime: Runtime, logs: Sequence[str], ranks: int, calls: int) -> str | None:
    """Return what the logs of a proof say against the program, None if they say that it ran.

    logs:  what each process logged, with the subsystems of `runtime`
    calls: how many calls of each rank the program must have executed at least
    """
    loaded = sum(re.search(runtime.loaded, log) is not None for log in logs)
    if loaded < ranks:
        refused = next((match[1].strip() for log in logs if (match := _REFUSED.search(log))), None)
        reason = "its log does not say why" if refused is None else refused
        return f"only {loaded} of {ranks} ranks took the program: {reason}"
    if runtime.scheduled is None:
        return None
    executed = sorted(len(re.findall(runtime.scheduled, log)) for log in logs)[-ranks:]
    if executed[0] < calls:
        return f"the log of a rank has {executed[0]} calls that the program executed, of at least {calls}"
    return None


def time_fault(program_s: Mapping[int, Sequence[float]], library_s: Mapping[int, Sequence[float]]) -> str | None:
    """Return why times by size speak against the program: at every size they are the library's. None if they are not.

    The only sign there is where a runtime logs no calls. A program that is as fast as the library at every size that
    was measured cannot be told from it: measure it at more sizes.
    """
    apart = {size: abs(median(program_s[size]) / median(library_s[size]) - 1) for size in program_s}
    if max(apart.values()) > SAME_TIME_TOLERANCE:
        return None
    shown = ", ".join(f"{format_size(size)} {part:.1%}" for size, part in sorted(apart.items()))
    return f"its times are the library's at every size (apart by {shown}), and its log does not tell calls"


COMMAND_NOT_FOUND = 127
_ABOUT_MPI = re.compile(r"PMI|\bmpi/|MPI plugin")
_MISSING = ("error while loading shared libraries", "ommand not found", "No such file", "device", "not enough slots")


@dataclass(frozen=True, slots=True)
class LaunchResult:
    """A launch of test programs that ended, or was ended: `exit_code` is None then.

    logs: of the library, for each test program in it those of all processes
    rank_hosts: where ranks ran, of those that said so
    """

    exit_code: int | None
    output: str
    errors: str
    logs: tuple[tuple[str, ...], ...] = ()
    rank_hosts: Mapping[int, RankHost] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LaunchFault:
    """Why a launch gave no times; one line."""

    kind: FailureKind
    message: str


def launch_times(
    launched: LaunchResult, sizes_bytes: Sequence[int], tables: int, ranks: int, in_place: bool
) -> Mapping[int, float] | LaunchFault:
    """Return the seconds of a call at each size in one placement, or the first fault that is found.

    tables: how many test programs ran one after the other
    """
    printed = parse_output(launched.output)
    return _process_fault(launched, printed, tables, ranks) or _times(printed, sizes_bytes, in_place)


def _process_fault(launched: LaunchResult, printed: LaunchOutput, tables: int, ranks: int) -> LaunchFault | None:
    if printed.ranks not in (0, ranks) or printed.tables > tables:
        seen = f"{printed.tables} tables of {printed.ranks} ranks instead of {tables} of {ranks}"
        return LaunchFault(
            FailureKind.UNAVAILABLE, f"the test programs print {seen}: build them with MPI=1 for this launcher"
        )
    if launched.exit_code is None:
        return LaunchFault(FailureKind.TIMEOUT, f"the launch took too long; {_how_far(printed)}")
    if any(printed.verdicts):
        return LaunchFault(FailureKind.WRONG_RESULT, f"{sum(printed.verdicts)} checks of results failed")
    if launched.exit_code != 0 or (printed.failure is not None and not printed.is_complete):
        reason = _reason(launched, printed)
        missing = launched.exit_code == COMMAND_NOT_FOUND or any(sign in reason for sign in _MISSING)
        kind = FailureKind.UNAVAILABLE if missing else FailureKind.CRASH
        return LaunchFault(kind, f"the launch ended with code {launched.exit_code}: {reason}; {_how_far(printed)}")
    if not printed.is_complete or len(printed.verdicts) < tables:
        return LaunchFault(FailureKind.CRASH, f"the output breaks off; {_how_far(printed)}")
    return None


def with_way_out(fault: LaunchFault, mpi_types: Sequence[str]) -> LaunchFault:
    """Return `fault` of a launch by srun, with what to set where it is about MPI; `mpi_types` is what srun has."""
    if not _ABOUT_MPI.search(fault.message):
        return fault
    offered = ", ".join(mpi_types) or "those of `srun --mpi=list`"
    way_out = f"set `mpi` to the one that the test programs were built for; srun has {offered}"
    return replace(fault, message=f"{fault.message}; {way_out}")


def _times(printed: LaunchOutput, sizes_bytes: Sequence[int], in_place: bool) -> Mapping[int, float] | LaunchFault:
    cells = {row.size_bytes: row.in_place if in_place else row.out_of_place for row in printed.rows}
    times = {}
    for size_bytes in sizes_bytes:
        cell = cells.get(size_bytes)
        if cell is None:
            return LaunchFault(FailureKind.CRASH, f"the table has no row of {size_bytes} bytes")
        if cell.wrong is None or cell.time_us is None:
            return LaunchFault(
                FailureKind.REJECTED, f"the test program did not check or time {format_size(size_bytes)}"
            )
        if cell.wrong:
            return LaunchFault(
                FailureKind.WRONG_RESULT, f"{cell.wrong} elements are wrong at {format_size(size_bytes)}"
            )
        if cell.time_us <= 0:
            return LaunchFault(FailureKind.CRASH, f"the time at {format_size(size_bytes)} is {cell.time_us} us")
        times[size_bytes] = cell.time_us / 1e6
    return times


def _reason(launched: LaunchResult, printed: LaunchOutput) -> str:
    """Return the line that tells most about a failed launch."""
    beside = parse_output(launched.errors)
    lines = [line.strip() for line in launched.errors.splitlines() if line.strip()]
    warnings = (
        *printed.warnings,
        *(warning for logs in launched.logs for log in logs for warning in parse_output(log).warnings),
    )
    known = (printed.failure, beside.failure, *warnings[:1], *beside.warnings[:1], *lines[-1:])
    return next((reason for reason in known if reason), "it does not say why")


def _how_far(printed: LaunchOutput) -> str:
    return f"its table has {len(printed.rows)} rows"
