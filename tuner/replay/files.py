"""Reads recorded runs: tables of runs, and logs of nccl-tests, whose names say what ran."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from chorale.runners.msccl.results import TableCell, parse_output
from chorale.runners.recorded.table import RecordedConfiguration, RecordedRun, ScheduleOrigin, read_runs
from chorale.synth.collective import STANDARD
from chorale.synth.errors import InvalidInput

_LIBRARY = re.compile(r"(?<![a-z])(nccl|rccl)(?![a-z])", re.IGNORECASE)
_K, _INSTANCES = re.compile(r"[_-]k([0-9]+)(?![0-9a-z])"), re.compile(r"[_-]i(?:nst)?([0-9]+)(?![0-9a-z])")
_BUFFER = re.compile(r"buff(?:er|size)?[_=-]?([0-9]+)", re.IGNORECASE)


def read_records(paths: Sequence[Path]) -> tuple[RecordedRun, ...]:
    """Return the runs in all of `paths`, in their order; the files of folders are logs, by name.

    InvalidInput for what cannot be read, and for files without a run.
    """
    return tuple(run for path in paths for file in _files(path) for run in _runs(file))


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return sorted(file for file in path.iterdir() if file.is_file() and file.suffix in (".txt", ".log", ".csv", ".out"))


def _runs(path: Path) -> Sequence[RecordedRun]:
    try:
        text = path.read_text(errors="replace")
    except OSError as error:
        raise InvalidInput("a record must be readable", f"{path}: {error.strerror}", "name another file") from error
    return read_runs(text) if path.suffix == ".csv" else log_runs(text, path.stem, path.resolve().parent.name)


def log_runs(text: str, name: str, fabric: str) -> tuple[RecordedRun, ...]:
    """Return the runs that the log of nccl-tests `text` has.

    name: of the log: has the collective in it, `nccl` or `rccl` for the library itself, and k, instances and buffers
          (`…_k1_inst2-buff262144`)

    Rows without a check (`N/A`, `-c 0`) are unchecked: their times count, and who uses them says so.
    """
    rows = parse_output(text if text.endswith("\n") else f"{text}\n").rows
    if not rows:
        way_out = "give what all_reduce_perf and its like print, or a table of runs that ends with .csv"
        raise InvalidInput("a log must have rows of nccl-tests", name, way_out)
    buffer = _BUFFER.search(name)
    configurations = {
        in_place: RecordedConfiguration(_origin(name, fabric), int(buffer[1]) if buffer else None, in_place)
        for in_place in (False, True)
    }
    cells = (
        (row.size_bytes, in_place, cell) for row in rows for in_place, cell in _cells(row.out_of_place, row.in_place)
    )
    return tuple(
        RecordedRun(configurations[in_place], size, cell.time_us / 1e6, cell.wrong)
        for size, in_place, cell in cells
        if cell.time_us is not None and cell.time_us > 0 and size > 0
    )


def _cells(out_of_place: TableCell, in_place: TableCell) -> Iterator[tuple[bool, TableCell]]:
    yield False, out_of_place
    yield True, in_place


def _origin(name: str, fabric: str) -> ScheduleOrigin:
    plain = name.lower().replace("-", "_")
    joined = plain.replace("_", "")
    collective = next((one.value for one in STANDARD if one.value.replace("_", "") in joined), None)
    if collective is None:
        known = ", ".join(one.value for one in STANDARD)
        raise InvalidInput("the name of a log must have its collective in it", name, f"one of {known}")
    if library := _LIBRARY.search(plain.replace("_", " ")):
        return ScheduleOrigin(fabric, collective, library[1].upper(), library[1].lower())
    k, instances = _K.search(name), _INSTANCES.search(name)
    schedule = _BUFFER.sub("", name).rstrip("-_")
    generator = schedule.split("_")[0] or "log"
    return ScheduleOrigin(
        fabric, collective, generator, schedule, int(k[1]) if k else None, int(instances[1]) if instances else None
    )
