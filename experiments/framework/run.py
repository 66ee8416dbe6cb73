"""Lists experiments by name and runs them: computes an experiment's parts, saves each part, then derives the rows.

`chorale experiment` imports this module by name, because `tuner` is a lower layer.
"""

import difflib
import importlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from chorale.experiments.framework.experiment import Case, Experiment, Row
from chorale.job.files import read_file
from chorale.synth.errors import InvalidInput, UnknownName
from chorale.synth.executor.base import Executor, SerialExecutor
from chorale.tuner.files.home import write_file
from chorale.tuner.reports.tables import peak_memory_bytes

FILE = Path(__file__).with_name("summaries.json")
"""File that lists every experiment with its name, its module in `chorale.experiments`, its question and its source.

To add an experiment, add its name and module to the file and run this module, which fills in the rest.
"""
_ENTRIES: Mapping[str, Mapping[str, str]] = {entry["name"]: entry for entry in json.loads(FILE.read_bytes())}

NAMES = tuple(_ENTRIES)

ALIASES = {
    "direct-connect-figure-8": "training-data-parallel",
    "direct-connect-figure-9": "training-experts",
    "direct-connect-figure-10": "direct-connect-table-6",
}
"""Name of a table or figure -> name of the experiment that reproduces it, if the names differ."""
ProgressCallback: TypeAlias = Callable[[str, int, int], None]
"""Called with the next case's name, the number of finished parts, and the total number of parts."""


def load(name: str) -> Experiment:
    """Return the experiment called `name`, which may be one of `ALIASES`. Raises UnknownName with similar names."""
    name = ALIASES.get(name, name)
    if name not in NAMES:
        close = difflib.get_close_matches(name, (*NAMES, *ALIASES), n=2)
        way_out = f"did you mean {' or '.join(map(repr, close))}?" if close else "see `chorale experiment list`"
        raise UnknownName("experiment", name, way_out)
    module = importlib.import_module(f"chorale.experiments.{_ENTRIES[name]['module']}")
    values = [*vars(module).values(), *getattr(module, "EXPERIMENTS", {}).values()]
    return next(value for value in values if isinstance(value, Experiment) and value.name == name)


def load_all() -> tuple[Experiment, ...]:
    """Return all experiments in the order of `NAMES`."""
    return tuple(map(load, NAMES))


class Summary(NamedTuple):
    """An entry in the list of experiments. `source` is the publication that raises the question."""

    name: str
    aliases: tuple[str, ...]
    question: str
    source: str


def summaries() -> tuple[Summary, ...]:
    """Return the summaries of all experiments, in list order."""
    aliases = {name: tuple(alias for alias, target in ALIASES.items() if target == name) for name in NAMES}
    return tuple(Summary(name, aliases[name], one["question"], one["source"]) for name, one in _ENTRIES.items())


def file_text() -> str:
    """Return the text of summaries.json, which lists all experiments. This imports all of them."""
    entries = [
        {"name": e.name, "module": _ENTRIES[e.name]["module"], "question": e.question, "source": e.source}
        for e in load_all()
    ]
    return json.dumps(entries, indent=1, ensure_ascii=False) + "\n"


ROOT = Path(__file__).parents[3] / "chorale"
"""The package's folder."""


@dataclass(frozen=True, slots=True)
class ExperimentPart:
    """The result of one case of an experiment, as JSON, with the time and peak memory that computing it took."""

    value: Any
    seconds: float
    peak_memory_bytes: int


@dataclass(frozen=True, slots=True)
class PartStore:
    """Stores parts as JSON files in `folder`, which must exist.

    A stored part is reused until a file of the package changes, even if versions of libraries change.
    """

    folder: Path

    def path(self, name: str, case: Case) -> Path:
        key = f"{code_id()} {name} {case!r}"
        return self.folder / f"{name}-{sha256(key.encode()).hexdigest()[:16]}.json"

    def load(self, name: str, case: Case) -> ExperimentPart | None:
        """Return the part for `case`, or None if it was not saved. Raises InvalidInput for a corrupted file."""
        path = self.path(name, case)
        if not path.exists():
            return None
        try:
            return ExperimentPart(**json.loads(read_file(str(path))))
        except (ValueError, TypeError) as error:
            rule = "a saved part of an experiment must be unchanged"
            raise InvalidInput(rule, f"{path}: {error}", "delete the file, and the part is computed again") from error

    def save(self, name: str, case: Case, part: ExperimentPart) -> None:
        """Save the part of `case` atomically."""
        write_file(self.path(name, case), json.dumps(asdict(part), indent=1).encode())


@cache
def code_id() -> str:
    """Return a digest of all source and data files in the package, without compiled files."""
    digest = sha256()
    packages = sorted(path for path in ROOT.iterdir() if path.is_dir() and path.name != "__pycache__")
    for path in sorted(ROOT.glob("*.py")) + [path for package in packages for path in sorted(package.rglob("*"))]:
        if path.is_file() and path.suffix not in (".pyc", ".so"):
            content = path.read_bytes()
            digest.update(f"{path.relative_to(ROOT).as_posix()} {len(content)}\n".encode())
            digest.update(content)
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class ExperimentResult:
    """The rows, the total seconds of all parts, and the highest peak memory of the processes that computed them."""

    rows: Sequence[Row]
    seconds: float
    peak_memory_bytes: int

    @property
    def holds(self) -> bool:
        return all(row["holds"] for row in self.rows)

    def document(self, experiment: Experiment, quick: bool) -> dict[str, Any]:
        """Return the document that `chorale experiment NAME --json` prints."""
        facts = {"experiment": experiment.name, "question": experiment.question, "source": experiment.source}
        outcome = {"quick": quick, "rows": list(self.rows), "holds": self.holds}
        return {**facts, **outcome, "seconds": self.seconds, "peak_memory_bytes": self.peak_memory_bytes}


def run_experiment(
    experiment: Experiment,
    quick: bool,
    executor: Executor | None = None,
    *,
    store: PartStore | None = None,
    resume: bool = False,
    progress: ProgressCallback | None = None,
) -> ExperimentResult:
    """Run an experiment and return its result, which does not depend on the executor.

    Args:
        experiment: the experiment.
        quick: leave out the cases that take long.
        executor: computes the parts. If it is None or the experiment must run alone, this process computes them.
        store: saves each part as soon as it is computed; None saves nothing.
        resume: reuse the parts that `store` has and compute only the missing parts.
        progress: called before each part.
    """
    cases = experiment.chosen(quick)
    parts: dict[int, ExperimentPart] = {}
    for number, case in enumerate(cases if resume else ()):
        if store and (part := store.load(experiment.name, case)) is not None:
            parts[number] = part
    missing = [number for number in range(len(cases)) if number not in parts]

    def report_progress() -> None:
        waiting = [number for number in missing if number not in parts]
        if progress and waiting:
            progress(case_name(cases[waiting[0]]), len(parts), len(cases))

    def save_part(index: int, part: ExperimentPart) -> None:
        number = missing[index]
        parts[number] = part
        if store:
            store.save(experiment.name, cases[number], part)
        report_progress()

    report_progress()
    missing_cases = [cases[number] for number in missing]
    if experiment.alone or executor is None or executor.name == SerialExecutor.name:
        SerialExecutor().map(_part, missing_cases, experiment, on_result=save_part)
    else:
        executor.map(_part_by_name, missing_cases, experiment.name, on_result=save_part)
    done = [parts[number] for number in range(len(cases))]
    peak = max((part.peak_memory_bytes for part in done), default=0)
    return ExperimentResult(
        experiment.conclude([part.value for part in done]), sum(part.seconds for part in done), peak
    )


def case_name(case: Case) -> str:
    return ", ".join(map(str, case)) if isinstance(case, tuple) else str(case)


def _part_by_name(name: str, case: Case) -> ExperimentPart:
    """Compute a part in a worker process, which gets the experiment's name because functions cannot be pickled."""
    return _part(load(name), case)


def _part(experiment: Experiment, case: Case) -> ExperimentPart:
    begun = time.perf_counter()
    value = experiment.evaluate(case)
    seconds = time.perf_counter() - begun
    # Always convert through JSON, so that a part is the same before and after saving.
    return ExperimentPart(json.loads(json.dumps(value, allow_nan=False)), seconds, peak_memory_bytes())


if __name__ == "__main__":
    FILE.write_text(file_text(), encoding="utf-8")
