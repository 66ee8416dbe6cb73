"""Measure what the tests catch: `cover` finds which tests run which lines, `run` puts faults into a copy of the tree.

    python -m tests.mutation cover build/mutation            # once: all tests that are not slow, with coverage
    python -m tests.mutation run build/mutation --count 300  # a table by package: caught by `make test`, by the rest

A fault is caught if a test fails, or runs out of time, that ran the changed line before, or that stands in a file with
such tests, as their fixtures are shared; tests that run it in other processes count. Needs the package `coverage`.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate, takewhile
from pathlib import Path
from queue import Queue
from typing import Any

from coverage import CoverageData

from tests import choice
from tests.mutation.mutants import Mutant, draw_mutants

PACKAGES = ("synth", "runners", "tuner", "job")
FIRST, REST, NOWHERE, UNUSED = "make test", "make test-all", "survived", "not run by a test"
FEW, SECONDS = 60, 30
"""So many tests are tried first; all that are tried take at most these seconds of a processor, as measured before."""
USAGE_ERROR = 4
MINUTES = 4
"""A run of the tests of one fault ends after this, which counts as caught: the fault made something endless."""


def cover(out: Path, pytest_arguments: list[str]) -> int:
    """Run the tests with coverage by test; what they print goes through."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    sources = [str(Path(name).resolve()) for name in PACKAGES]
    environment = os.environ | {
        "MUTATION_OUT": str(out.resolve()),
        "MUTATION_SOURCES": os.pathsep.join(sources),
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent / "site"), os.environ.get("PYTHONPATH", "")]),
    }
    command = [sys.executable, "-m", "pytest", "-p", "tests.mutation.line_recorder", *pytest_arguments]
    return subprocess.run(command, env=environment, check=False).returncode


def tests_by_line(out: Path) -> dict[str, dict[int, list[str]]]:
    """Return the tests that run each line, by file from the root of the tree."""
    found: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    for part in out.glob("lines.*"):
        data = CoverageData(str(part))
        data.read()
        for name in data.measured_files():
            path = Path(name).resolve().relative_to(Path.cwd()).as_posix()
            for line, contexts in data.contexts_by_lineno(name).items():
                found[path][line].update(filter(None, contexts))
    return {path: {line: sorted(tests) for line, tests in lines.items()} for path, lines in found.items()}


def fate(
    mutant: Mutant, tree: Path, covering: dict[str, dict[int, list[str]]], known: dict[str, dict[str, Any]]
) -> tuple[str, str]:
    """Return what catches a fault, the tests of `make test`, the rest, or none, and the first test that fails."""
    lines = covering.get(mutant.path, {})
    names = {name for line in range(mutant.first, mutant.last + 1) for name in lines.get(line, ())} & known.keys()
    if not names:
        return UNUSED, ""

    def nearness(test: str) -> int:  # how many folders it shares with the file: the tests of a file go first
        pairs = zip(Path(test.removeprefix("tests/unit/")).parts[:-1], Path(mutant.path).parts[:-1], strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

    ordered = sorted(names, key=lambda name: (-nearness(name), known[name]["cpu_s"], name))
    file = tree / mutant.path
    times = file.stat()
    old = mutant.apply(tree)
    try:
        for group, is_more in ((FIRST, False), (REST, True)):
            files = {name.partition("::")[0] for name in ordered[:FEW]}
            beside = sorted(name for name in known if name.partition("::")[0] in files and name not in names)
            chosen = [name for name in (*ordered, *beside) if choice.is_more(name.removeprefix("tests/")) == is_more]
            seconds = accumulate(known[name]["cpu_s"] for name in chosen)
            fitting = [name for name, until_then in zip(chosen, seconds, strict=True) if until_then <= SECONDS]
            for batch in (chosen[:FEW], fitting[FEW:]):  # of the first, one mostly fails
                if batch and (failed := _first_that_fails(tree, batch)):
                    return group, failed
    finally:
        file.write_text(old, encoding="utf-8")
        os.utime(file, (times.st_atime, times.st_mtime))  # so that its bytecode is that of this file again
    return NOWHERE, ""


def _first_that_fails(tree: Path, names: list[str]) -> str:
    """Return the first of these tests that fails in a tree, "too long" where they do not end, or nothing."""
    arguments = tree / "build" / "chosen.txt"
    arguments.parent.mkdir(exist_ok=True)
    arguments.write_text("\n".join(names), encoding="utf-8")
    options = ["-x", "-q", "-rfE", "-p", "no:cacheprovider", "-p", "no:xdist", "--timeout", "60", f"@{arguments}"]
    environment = os.environ | {"PYTHONPATH": str(tree), "CI": "true", "PYTHONDONTWRITEBYTECODE": ""}
    command = [sys.executable, "-m", "pytest", *options]
    try:
        ended = subprocess.run(
            command, cwd=tree, env=environment, timeout=60 * MINUTES, capture_output=True, check=False, text=True
        )
    except subprocess.TimeoutExpired:
        return "too long"
    if ended.returncode == USAGE_ERROR and "found no collectors" not in ended.stderr:  # that: a fault at import
        raise ValueError(f"tests that are not in {tree}: {ended.stderr[-500:]}")
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", ended.stdout, re.MULTILINE)
    return "" if ended.returncode == 0 else failed[1] if failed else f"exit code {ended.returncode}"


def copies(count: int, folder: Path) -> list[Path]:
    """Copy the tree for each of several workers, with what was built in it."""
    trees = [folder / f"tree{index}" for index in range(count)]
    here = str(Path.cwd())

    def left_out(folder: str, names: list[str]) -> list[str]:
        of_root = {".git", ".venv", "build", "chorale-data"} if folder == here else set()
        return [name for name in names if name in of_root or name.endswith(".egg-info")]

    for tree in trees:
        shutil.rmtree(tree, ignore_errors=True)
        shutil.copytree(here, tree, symlinks=True, ignore=left_out)
    return trees


def run(out: Path, count: int, seed: int, jobs: int) -> None:
    """Try faults, and print what caught them by package; every fault goes to `mutants.jsonl`."""
    covering = tests_by_line(out)
    lines = (line for part in sorted(out.glob("tests.*.jsonl")) for line in part.read_text().splitlines())
    known = {record["test"]: record for record in map(json.loads, lines) if not record["failed"]}
    free: Queue[Path] = Queue()
    for tree in copies(jobs, out):
        free.put(tree)

    def tried(mutant: Mutant) -> tuple[Mutant, tuple[str, str]]:
        tree = free.get()
        try:
            return mutant, fate(mutant, tree, covering, known)
        finally:
            free.put(tree)

    share = count // len(PACKAGES)
    drawn = [mutant for package in PACKAGES for mutant in draw_mutants(Path.cwd(), package, share, seed)]
    fates: Counter[tuple[str, str]] = Counter()
    with ThreadPoolExecutor(jobs) as pool, (out / "mutants.jsonl").open("w", encoding="utf-8") as log:
        for mutant, (what, test) in pool.map(tried, drawn):
            fates[mutant.path.split("/")[0], what] += 1
            print(json.dumps({"fate": what, "test": test, **vars(mutant)}), file=log, flush=True)
            print(f"{what:18} {mutant.path}:{mutant.first} {test}", file=sys.stderr)
    columns = (FIRST, REST, NOWHERE, UNUSED)
    print(f"{'':12}" + "".join(f"{name:>20}" for name in columns))
    for package in PACKAGES:
        print(f"{package:12}" + "".join(f"{fates[package, name]:>20}" for name in columns))


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutation", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    covering = verbs.add_parser("cover", help="run the tests with coverage by test")
    trying = verbs.add_parser("run", help="put faults into copies of the tree")
    for verb in (covering, trying):
        verb.add_argument("folder", type=Path, help="where the measurements are kept")
    covering.add_argument("pytest", nargs="*", help="arguments of pytest, after --")
    trying.add_argument("--count", type=int, default=300)
    trying.add_argument("--seed", type=int, default=1)
    trying.add_argument("--jobs", type=int, default=2)
    chosen = parser.parse_args()
    if chosen.verb == "cover":
        return cover(chosen.folder, chosen.pytest or ["-m", "not slow"])
    run(chosen.folder.resolve(), chosen.count, chosen.seed, chosen.jobs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
