"""Parses the output of test programs, and checks from logs and times whether a runtime executed a program."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from chorale.runners.api.units import format_size
from chorale.runners.msccl.commands import Runtime

_CELLS, _DATE, _ITERATION_CELLS = 8, 2, 16  # with -S date and time at the end; with -I four more after each cell
_COLUMNS = (*range(3 + _CELLS, 6 + _CELLS), 5 + _CELLS + _DATE, 5 + _ITERATION_CELLS)
"""Until 2.11, tables have an error instead of a count of wrong elements, and omit operation and root if meaningless."""

_WHOLE = re.compile(r"[0-9]+")
_ROOT = re.compile(r"-1|[0-9]+")
_WORD = re.compile(r"[a-z][a-z0-9_]*")
_NUMBER = re.compile(r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?|N/A|nan|inf")


@dataclass(frozen=True, slots=True)
class TableCell:
    """A row's results for one placement: out of place or in place.

    time_us:    None if it was not measured
    wrong:      number of wrong elements; None if unknown
    bandwidths: algbw and busbw as printed, in GB/s; None if they are not numbers
    """

    time_us: float | None
    wrong: int | None
    bandwidths: tuple[float, float] | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class TableRow:
    """A row of a table. size_bytes: as the test program counts it; root: -1 or None if the collective has no root"""

    size_bytes: int
    count: int
    dtype: str
    redop: str
    root: int | None
    out_of_place: TableCell
    in_place: TableCell


def parse_row(line: str) -> TableRow | None:
    """Parse a table row; return None if `line` is not one."""
    words = line.split()
    head = _head(words)
    if len(words) not in _COLUMNS or head is None:
        return None
    cells = words[head:]
    if len(words) == 5 + _CELLS + _DATE:
        cells = cells[:-_DATE]
    if len(cells) not in (_CELLS, _ITERATION_CELLS) or not all(_NUMBER.fullmatch(cell.rstrip("*")) for cell in cells):
        return None
    half, about = len(cells) // 2, words[3:head]
    return TableRow(
        size_bytes=int(words[0]),
        count=int(words[1]),
        dtype=words[2],
        redop=about[0] if about and _WORD.fullmatch(about[0]) else "none",
        root=int(about[-1]) if about and _ROOT.fullmatch(about[-1]) else None,
        out_of_place=_cell(cells[:half], len(about) == 2),
        in_place=_cell(cells[half:], len(about) == 2),
    )


def is_part_of_row(line: str) -> bool:
    """Return whether `line` may be the beginning of a row that continues on another line."""
    words = line.split()
    head = _head(words)
    return head is not None and head >= 4 and all(_NUMBER.fullmatch(word.rstrip("*")) for word in words[head:])


def _head(words: list[str]) -> int | None:
    """Return the number of words that describe a row: size, count, type, and any operation and root."""
    if len(words) < 3 or not all(
        shape.fullmatch(word) for shape, word in zip((_WHOLE, _WHOLE, _WORD), words, strict=False)
    ):
        return None
    head = 3
    if len(words) > head and _WORD.fullmatch(words[head]) and not _NUMBER.fullmatch(words[head]):
        head += 1
    has_root = len(words) > head and _ROOT.fullmatch(words[head]) and (len(words) - head - 1 != _CELLS - 1)
    return head + bool(has_root)


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
"""A line of the library's log, which may begin in the middle of a row that another process is printing."""

_RANK = re.compile(r"#\s+Rank\s+(\d+)\s")
_DEVICE = re.compile(r"#\s+Rank\s+\d+\s.*\[[0-9a-fA-Fx:.]+\] (.+)")
_VERSION = re.compile(r"(NCCL|RCCL) version[ :]+(\S+)|nccl-library=(\d+)")


@dataclass(frozen=True, slots=True)
class LaunchOutput:
    """Parsed output of a launch, in which one or several test programs ran one after the other.

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

    Lines of launchers, libraries and other ranks may appear between the lines of a table, and log lines within them.
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
    """Yield the rows whose last line is complete, because the last number of an incomplete line may be cut off."""
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


SAME_TIME_TOLERANCE = 0.03
"""Medians whose relative difference is at most this at every size may come from the same algorithm."""

_REFUSED = re.compile(r"NCCL WARN (.*MSCCL.*)", re.IGNORECASE)


def log_fault(runtime: Runtime, logs: Sequence[str], ranks: int, calls: int) -> str | None:
    """Return the evidence in a proof's logs that the program did not run, or None if they show that it ran.

    logs:  log of each process, with the subsystems of `runtime`
    calls: minimum number of calls that the program must have executed on each rank
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
    """Return a message if the program's times equal the library's at every size, as if it had not run; otherwise None.
    This is the only evidence if a runtime logs no calls. A program that is as fast as the library at every measured
    size cannot be distinguished from it: measure more sizes.
    """
    apart = {size: abs(median(program_s[size]) / median(library_s[size]) - 1) for size in program_s}
    if max(apart.values()) > SAME_TIME_TOLERANCE:
        return None
    shown = ", ".join(f"{format_size(size)} {part:.1%}" for size, part in sorted(apart.items()))
    return f"its times are the library's at every size (apart by {shown}), and its log does not list calls"
