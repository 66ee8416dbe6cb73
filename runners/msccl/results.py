"""Parses the output of test programs, and checks from logs and times whether a runtime executed a program."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from chorale.runners.api.units import format_size
from chorale.runners.msccl.commands import Runtime

_WHOLE = re.compile(r"[0-9]+")
_ROOT = re.compile(r"-1|[0-9]+")
_WORD = re.compile(r"(?!nan$|inf$)[a-z][a-z0-9_]*")
_NUMBER = re.compile(r"(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?|N/A|nan|inf)\**")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
SAME_TIME_TOLERANCE = 0.03
"""If medians differ by at most this fraction at every size, they may come from the same algorithm."""
_REFUSED = re.compile(r"NCCL WARN (.*MSCCL.*)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class TableCell:
    """The part of a table row with the results for one placement: out of place or in place.

    time_us:    time in microseconds; None if it was not measured
    wrong:      number of wrong elements; None if unknown
    bandwidths: algbw and busbw as printed, in GB/s; None if they are not numbers
    """

    time_us: float | None
    wrong: int | None
    bandwidths: tuple[float, float] | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class TableRow:
    """A row of a test program's table. `root` is -1 or None if the collective has no root."""

    size_bytes: int
    redop: str
    root: int | None
    out_of_place: TableCell
    in_place: TableCell


def parse_row(line: str) -> TableRow | None:
    """Parse a table row; return None if `line` is not one.

    A row has size, count, type, operation and root, then 8 numbers (16 with the option -I). With -S, date and time
    follow. Until version 2.11, rows have an error instead of the number of wrong elements, and they omit the operation
    or the root if the collective has none.
    """
    words = line.split()
    rest = words[3:]
    redop = rest.pop(0) if rest and _WORD.fullmatch(rest[0]) else None
    rest = rest[:-2] if len(rest) > 2 and _DATE.fullmatch(rest[-2]) else rest
    root = rest.pop(0) if len(rest) % 8 == 1 and _ROOT.fullmatch(rest[0]) else None
    if not _begins_row(words) or len(rest) not in (8, 16) or not all(map(_NUMBER.fullmatch, rest)):
        return None
    half, counts_wrong = len(rest) // 2, redop is not None and root is not None
    return TableRow(
        int(words[0]),
        redop or "none",
        None if root is None else int(root),
        _cell(rest[:half], counts_wrong),
        _cell(rest[half:], counts_wrong),
    )


def is_part_of_row(line: str) -> bool:
    """Return whether `line` may be the beginning of a row that continues on another line."""
    words = line.split()
    is_head = len(words) > 3 and bool(_WORD.fullmatch(words[3]) or _ROOT.fullmatch(words[3]))
    return is_head and _begins_row(words) and all(map(_NUMBER.fullmatch, (word.lstrip("-") for word in words[4:])))


def _begins_row(words: list[str]) -> bool:
    shapes = zip((_WHOLE, _WHOLE, _WORD), words, strict=False)
    return len(words) > 3 and all(shape.fullmatch(word) for shape, word in shapes)


def _cell(words: list[str], counts_wrong: bool) -> TableCell:
    """Parse `time algbw busbw #wrong`; a star marks results that the test program itself considers wrong."""
    time_us = None if words[0] == "N/A" else float(words[0])
    mark, wrong = words[3], None
    if mark.rstrip("*") != "N/A":
        number = float(mark.rstrip("*"))
        if math.isfinite(number) and (counts_wrong or number == 0):
            wrong = round(number)
        if mark.endswith("*") or not math.isfinite(number):
            wrong = max(1, wrong or 0)
    bandwidths = None if "N/A" in words[1:3] else (float(words[1]), float(words[2]))
    return TableCell(time_us, wrong, bandwidths)


_PREFIX = re.compile(r"^(\[[^\]\s]*\d+,(?P<tagged>\d+)\](<\w+>)?:? ?|(?P<labelled>\d+): )")
"""A line's prefix with the rank, as printed by Open MPI with --tag-output and by Slurm with --label."""

_LOG = re.compile(
    r"(\[\d{4}-\d\d-\d\d[ T][\d:.]+\] ?)?"  # newer libraries put the time before warnings
    r"(^\d[\d.-]*|[A-Za-z][\w.-]*):\d+:\d+ (\[\d+\] )?([\w/.]+:\d+ )?"
    r"NCCL (INFO|WARN|TRACE|ERROR|VERSION)\b[^\n]*(\n|\Z)",
    re.MULTILINE,
)
"""A line of the library's log. It may begin in the middle of a table row that another process is printing."""

_RANK = re.compile(r"#\s+Rank\s+(\d+)\s")
_DEVICE = re.compile(r"#\s+Rank\s+\d+\s.*\[[0-9a-fA-Fx:.]+\] (.+)")
_VERSION = re.compile(r"(NCCL|RCCL) version[ :]+(\S+)|nccl-library=(\d+)")


@dataclass(frozen=True, slots=True)
class LaunchOutput:
    """The parsed output of a launch, in which one or several test programs ran one after the other.

    rows:  rows of all tables, in order
    ranks: number of ranks according to the tables, 0 if unknown
    device, version: the first rank's device, and the library's version, if the output names them
    """

    rows: tuple[TableRow, ...]
    ranks: int
    device: str | None = None
    version: str | None = None


def parse_output(text: str) -> LaunchOutput:
    """Parse `text`, the standard output of a launch.

    Lines of launchers, libraries and other ranks may appear between a table's rows, and log lines even within rows.
    Incomplete rows are left out. Never raises. O(characters).
    """
    plain = "\n".join(_PREFIX.sub("", line) for line in text.replace("\r", "").split("\n"))
    clean = _LOG.sub("", plain)
    ranks = {int(match[1]) for match in _RANK.finditer(clean)}
    device, version = _DEVICE.search(clean), _VERSION.search(plain)
    return LaunchOutput(
        rows=tuple(_rows(clean)),
        ranks=len(ranks),
        device=None if device is None else device[1].strip(),
        version=None if version is None else next(part for part in version.groups()[1:] if part),
    )


def _rows(text: str) -> Iterator[TableRow]:
    """Yield the table rows that end with a line break. In other rows, the last number may be cut off."""
    begun = ""
    for line in text.split("\n")[:-1]:
        for whole in (line, f"{begun} {line}") if begun else (line,):
            if (row := parse_row(whole)) is not None:
                yield row
                begun = ""
                break
        else:
            if begun and is_part_of_row(f"{begun} {line}"):
                begun = f"{begun} {line}"
            elif is_part_of_row(line):
                begun = line


def log_fault(runtime: Runtime, logs: Sequence[str], ranks: int, calls: int) -> str | None:
    """Return a line that says why a launch's logs do not show that the program ran, or None if they show it.

    logs:  text of each process's log, written with `runtime.subsystems`
    calls: minimum number of calls that the program must have executed on each rank
    """
    loaded = sum(re.search(runtime.loaded, log) is not None for log in logs)
    if loaded < ranks:
        refused = next((match[1].strip() for log in logs if (match := _REFUSED.search(log))), None)
        reason = "the log gives no reason" if refused is None else refused
        return f"only {loaded} of {ranks} ranks loaded the program: {reason}"
    if runtime.scheduled is None:
        return None
    executed = sorted(len(re.findall(runtime.scheduled, log)) for log in logs)[-ranks:]
    if executed[0] < calls:
        return f"the log of a rank shows {executed[0]} calls that the program executed, instead of at least {calls}"
    return None


def time_fault(program_s: Mapping[int, Sequence[float]], library_s: Mapping[int, Sequence[float]]) -> str | None:
    """Return a message if the program's times equal the library's at every size, otherwise None.

    Equal times suggest that the library ran instead of the program. If a runtime logs no calls, there is no other
    evidence. A program may also really be as fast as the library at every measured size. If so, measure more sizes.
    """
    apart = {size: abs(median(program_s[size]) / median(library_s[size]) - 1) for size in program_s}
    if max(apart.values()) > SAME_TIME_TOLERANCE:
        return None
    shown = ", ".join(f"{format_size(size)} {part:.1%}" for size, part in sorted(apart.items()))
    return f"its times equal the library's at every size (they differ by {shown}), and its log does not list calls"
