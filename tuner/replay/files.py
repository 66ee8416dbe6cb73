"""Read recorded runs: tables of runs, and results of nccl-tests and others, whose names tell what ran."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from chorale.runners.recorded.table import RecordedConfiguration, RecordedRun, ScheduleOrigin, read_runs
from chorale.synth.collective import STANDARD
from chorale.synth.errors import InvalidInput
from chorale.tuner.files.result_files import parse_results

_LIBRARY = re.compile(r"(?<![a-z])(nccl|rccl)(?![a-z])", re.IGNORECASE)
_K, _INSTANCES = re.compile(r"[_-]k([0-9]+)(?![0-9a-z])"), re.compile(r"[_-]i(?:nst)?([0-9]+)(?![0-9a-z])")
_BUFFER = re.compile(r"buff(?:er|size)?[_=-]?([0-9]+)", re.IGNORECASE)


def read_records(paths: Sequence[Path]) -> tuple[RecordedRun, ...]:
    """Return the runs in all of `paths`, in their order; the files of folders are logs, by name.

    InvalidInput for what cannot be read, and for files without a run.
    """
    kinds = (".txt", ".log", ".csv", ".out", ".json")
    runs: list[RecordedRun] = []
    for path in paths:
        files = [path]
        if path.is_dir():
            files = sorted(file for file in path.iterdir() if file.is_file() and file.suffix in kinds)
        for file in files:
            try:
                text = file.read_text(errors="replace")
            except OSError as error:
                value = f"{file}: {error.strerror}"
                raise InvalidInput("a record must be readable", value, "name another file") from error
            is_table = file.suffix == ".csv" and "fabric" in text.partition("\n")[0]
            runs += read_runs(text) if is_table else log_runs(text, file.stem, file.resolve().parent.name)
    return tuple(runs)


def log_runs(text: str, name: str, fabric: str) -> tuple[RecordedRun, ...]:
    """Return the runs that the results in `text` have, in any form that `parse_results` reads.

    name: of the log: has the collective in it if the text does not, `nccl` or `rccl` for the library itself, and k,
          instances and buffers (`…_k1_inst2-buff262144`)

    Rows without a check (`N/A`, `-c 0`) are unchecked: their times count, and who uses them says so.
    """
    buffer = _BUFFER.search(name)
    runs = []
    for results in parse_results(text, name):
        origin = _origin(name, fabric, results.collective)
        whole = results.of_ranks(results.ranks or 1)
        for row in whole.rows:
            configuration = RecordedConfiguration(origin, int(buffer[1]) if buffer else None, row.in_place)
            runs.append(RecordedRun(configuration, row.size_bytes, row.time_us / 1e6, row.wrong))
    return tuple(runs)


def _origin(name: str, fabric: str, collective: str | None) -> ScheduleOrigin:
    plain = name.lower().replace("-", "_")
    if collective is None:
        known = ", ".join(one.value for one in STANDARD)
        raise InvalidInput("a log or its name must have its collective in it", name, f"one of {known}")
    if library := _LIBRARY.search(plain.replace("_", " ")):
        return ScheduleOrigin(fabric, collective, library[1].upper(), library[1].lower())
    k, instances = _K.search(name), _INSTANCES.search(name)
    schedule = _BUFFER.sub("", name).rstrip("-_")
    generator = schedule.split("_")[0] or "log"
    return ScheduleOrigin(
        fabric, collective, generator, schedule, int(k[1]) if k else None, int(instances[1]) if instances else None
    )
