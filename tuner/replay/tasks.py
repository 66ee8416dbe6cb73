"""Turns recorded runs into search tasks.

A task has the times of a collective's configurations on one fabric, and the times of the library there. Runs are read
from tables of runs, and from result files of nccl-tests and other tools. The names of result files say which
configuration was run.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from chorale.job.files import read_file
from chorale.runners.recorded.table import RecordedConfiguration, RecordedRun, RecordedTable, ScheduleOrigin, read_runs
from chorale.synth.collective import STANDARD
from chorale.synth.errors import InvalidInput
from chorale.tuner.config.values import Value
from chorale.tuner.files.result_files import parse_results
from chorale.tuner.search.space import SearchSpace
from chorale.tuner.trials.records import Candidate

MAX_BYTES = 2**26
_LIBRARY = re.compile(r"(?<![a-z])(nccl|rccl)(?![a-z])", re.IGNORECASE)
_K, _INSTANCES = re.compile(r"[_-]k([0-9]+)(?![0-9a-z])"), re.compile(r"[_-]i(?:nst)?([0-9]+)(?![0-9a-z])")
_BUFFER = re.compile(r"buff(?:er|size)?[_=-]?([0-9]+)", re.IGNORECASE)


def read_records(paths: Sequence[Path]) -> tuple[RecordedRun, ...]:
    """Return the runs in all of `paths`, in this order. The files in a folder are read as logs, sorted by name.

    Raises InvalidInput for files that cannot be read or contain no run.
    """
    kinds = (".txt", ".log", ".csv", ".out", ".json")
    runs: list[RecordedRun] = []
    for path in paths:
        files = [path]
        if path.is_dir():
            files = sorted(file for file in path.iterdir() if file.is_file() and file.suffix in kinds)
        for file in files:
            text = read_file(file, MAX_BYTES).decode(errors="replace")
            is_table = file.suffix == ".csv" and "fabric" in text.partition("\n")[0]
            runs += read_runs(text) if is_table else log_runs(text, file.stem, file.resolve().parent.name)
    return tuple(runs)


def log_runs(text: str, name: str, fabric: str) -> tuple[RecordedRun, ...]:
    """Return the runs in `text`, a result file's content in any format that `parse_results` reads.

    name: the log's name. For a run of the library it contains `nccl` or `rccl`; for a run of a program, its k (trees
          per root), instances and buffer size (`…_k1_inst2-buff262144`). If the text does not name the collective, the
          log's name must contain it.

    Rows whose results were not checked (`N/A`, `-c 0`) are marked as unchecked. Their times are used nevertheless, and
    reports state the fraction of unchecked times.
    """
    buffer = _BUFFER.search(name)
    runs = []
    for results in parse_results(text, name):
        if results.collective is None:
            known = ", ".join(one.value for one in STANDARD)
            rule = "neither the log {} nor its name says which collective was measured"
            raise InvalidInput(rule, name, f"put one of {known} into the file name")
        if library := _LIBRARY.search(name.lower().replace("-", "_").replace("_", " ")):
            origin = ScheduleOrigin(fabric, results.collective, library[1].upper(), library[1].lower())
        else:
            k, instances = _K.search(name), _INSTANCES.search(name)
            schedule = _BUFFER.sub("", name).rstrip("-_")
            counts = int(k[1]) if k else None, int(instances[1]) if instances else None
            origin = ScheduleOrigin(fabric, results.collective, schedule.split("_")[0] or "log", schedule, *counts)
        whole = results.of_ranks(results.ranks or 1)
        for row in whole.rows:
            configuration = RecordedConfiguration(origin, int(buffer[1]) if buffer else None, row.in_place)
            runs.append(RecordedRun(configuration, row.size_bytes, row.time_us / 1e6, row.wrong))
    return tuple(runs)


Floats = NDArray[np.float64]

PARAMETERS = ("method", "k", "chunks", "instances", "buffer_bytes")
LARGEST_BYTES = 2**30
"""Maximum size in bytes. Larger sizes are ignored: they take most of a record's time and add little information."""

MIN_SHARE = 0.8
"""A size is used only if it has at least this fraction of the configurations that the best-covered size has."""

_CHUNKS, _COPIES = re.compile(r"\.chunks([0-9]+)-"), re.compile(r"_i(?:nst)?([0-9]+)(?:_|\b)")


@dataclass(frozen=True, eq=False)
class GridTask:
    """A search task built from recorded runs.

    times_s:   recorded times (candidates, sizes), used as the true times
    library_s: the library's recorded times (sizes)
    unchecked: fraction of the times whose results were not checked for correctness
    """

    name: str
    collective: str
    candidates: tuple[Candidate, ...]
    sizes_bytes: tuple[int, ...]
    times_s: Floats
    library_s: Floats
    unchecked: float = 0.0

    def space(self, seed: int) -> SearchSpace:
        """Return the search space. The values of each parameter are in random order, because no value is preferred."""
        random = np.random.default_rng(seed)
        rows = [candidate.parameters for candidate in self.candidates]
        columns = {name: list(dict.fromkeys(row[name] for row in rows)) for name in PARAMETERS}
        dimensions: dict[str, tuple[Value, ...]] = {
            name: tuple(values[index] for index in random.permutation(len(values))) for name, values in columns.items()
        }
        return SearchSpace(dimensions, _Recorded(frozenset(self.candidates)))

    @property
    def best_s(self) -> Floats:
        """Return the shortest recorded time at each size in seconds, including the library's."""
        return np.asarray(np.minimum(self.times_s.min(axis=0), self.library_s))


@dataclass(frozen=True, slots=True)
class _Recorded:
    """Restricts a search to recorded points: no other candidate may be tried."""

    candidates: frozenset[Candidate]

    def matters(self, parameter: str, method: str) -> bool:
        default = Candidate(method).parameters[parameter]
        return any(one.parameters[parameter] != default for one in self.candidates if one.method == method)

    def reason_not_to_try(self, candidate: Candidate) -> str | None:
        return None if candidate in self.candidates else "it was not recorded"


def replay_tasks(table: RecordedTable) -> list[GridTask]:
    """Return the tasks in a record, in the record's order.

    A collective on a fabric is a task if at least two configurations and the library were measured. Runs with wrong
    results, and runs in which the program did not execute (see `chorale.runners.recorded.table`), do not count. Raises
    InvalidInput if there are no tasks.
    """
    tasks = []
    for fabric in table.fabrics:
        for collective in table.collectives(fabric):
            placed = [_placed(table, fabric, collective, in_place) for in_place in (True, False)]
            found = [task for task in placed if task is not None]
            tasks += [max(found, key=lambda task: task.times_s.size)] if found else []
    if not tasks:
        rule = (
            "the record needs at least two configurations of a collective on a fabric, in addition to the library's: {}"
        )
        raise InvalidInput(
            rule, ", ".join(table.fabrics) or "no runs", "give more files, including some of the library"
        )
    return tasks


def _placed(table: RecordedTable, fabric: str, collective: str, in_place: bool) -> GridTask | None:
    """Return the task made of all in-place runs or, if `in_place` is false, of all out-of-place runs.

    Its sizes are those at which the library and most configurations ran correctly (see `MIN_SHARE`). Returns None if
    fewer than two configurations ran correctly at all these sizes.
    """

    def usable(configuration: RecordedConfiguration) -> set[int]:
        sizes = (size for size in table.sizes_bytes(configuration) if size <= LARGEST_BYTES)
        ran = (size for size in sizes if not table.fell_back(configuration, size))
        return {size for size in ran if table.is_correct(configuration, size) is not False}

    programs = [one for one in table.configurations(fabric, collective) if one.in_place == in_place]
    libraries = [one for one in table.libraries(fabric, collective) if one.in_place == in_place]
    measured = {one: usable(one) for one in (*programs, *libraries)}
    counts = Counter(size for one in programs for size in measured[one])
    usual = max(counts.values(), default=0)
    of_library = set().union(*(measured[one] for one in libraries))
    sizes = tuple(sorted(size for size in of_library if counts[size] >= MIN_SHARE * usual > 0))
    complete = [one for one in programs if sizes and set(sizes) <= measured[one]]
    if len(complete) < 2:
        return None
    library = [min(min(table.times_s(one, size)) for one in libraries if size in measured[one]) for size in sizes]
    times = [[min(table.times_s(one, size)) for size in sizes] for one in complete]
    runs = [(one, size) for one in (*complete, *libraries) for size in sizes if size in table.sizes_bytes(one)]
    unchecked = sum(table.is_correct(one, size) is None for one, size in runs) / len(runs)
    candidates, name = tuple(candidates_of(complete)), f"{collective} {fabric}"
    return GridTask(name, collective, candidates, sizes, np.array(times), np.array(library), unchecked)


def candidates_of(configurations: Sequence[RecordedConfiguration]) -> Iterator[Candidate]:
    """Yield a search point for each configuration. If points are equal, the schedule's name is added to the method."""
    plain = [_candidate(one) for one in configurations]
    counts = Counter(plain)
    for one, candidate in zip(configurations, plain, strict=True):
        method = candidate.method if counts[candidate] == 1 else f"{candidate.method} {one.origin.schedule}"
        yield replace(candidate, method=method)


def _candidate(configuration: RecordedConfiguration) -> Candidate:
    origin = configuration.origin
    chunks, instances = _CHUNKS.search(origin.schedule), _COPIES.search(origin.schedule)
    copies = origin.instances or (int(instances[1]) if instances else 1)
    return Candidate(
        origin.generator,
        k=origin.k,
        chunks=int(chunks[1]) if chunks else None,
        instances=max(copies, 1),
        buffer_bytes=configuration.buffer_bytes,
    )


def named_tasks(tasks: Iterable[GridTask], name: str) -> list[GridTask]:
    return [task for task in tasks if name in task.name]
