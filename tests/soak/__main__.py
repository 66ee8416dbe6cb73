"""`python -m tests.soak --count 500 --seed 1`: random sequences of faults, each with a history that is checked.

Prints one JSON document: sequences, faults by kind, what was suggested, recorded and tracked; exit 1 if a history
breaks a rule. `--count 1 --seed SEED` repeats a sequence; its files stay in `--folder`.
"""

import argparse
import json
import os
import shutil
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

from chorale.tuner.tracking.mlflow_store import MlflowStore, load_mlflow
from tests.soak.launches import warm_up
from tests.soak.sequence import Plan, Sequence, plan_of

SETTINGS = {"RAY_USAGE_STATS_ENABLED": "0", "MLFLOW_DISABLE_TELEMETRY": "true", "COLUMNS": "400"}


def template_in(folder: Path) -> Path:
    """Return an empty database of MLflow's; a process of its own makes it, as no thread may live when one forks."""
    folder.mkdir()
    child = os.fork()
    if child == 0:
        MlflowStore(f"sqlite:///{folder / 'mlflow.db'}", folder)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    with closing(sqlite3.connect(folder / "mlflow.db")) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # so that the one file holds everything
    return folder / "mlflow.db"


class Soak:
    """Runs sequences in `folder`, of which those that pass are removed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._template = template_in(folder / "template")
        warm = Sequence(Plan(-1, "plain", ()), folder / "warm", self._template, None)
        warm.prepare()
        warm_up(warm.words, warm.home)

    def run(self, plan: Plan) -> dict[str, Any]:
        """Return what happened in the sequence of `plan`."""
        folder = self._folder / str(plan.seed)
        result = Sequence(plan, folder, self._template, self._calm(plan)).run()
        if not result["violations"]:
            shutil.rmtree(folder)
        return result

    def _calm(self, plan: Plan) -> Path:
        """Return the folder of a run of the same campaign without faults."""
        folder = self._folder / f"calm {plan.campaign}"
        if not folder.exists():
            found = Sequence(Plan(-1, plan.campaign, ()), folder, self._template, None).run()
            assert not found["violations"], found
        return folder


def summary(results: list[dict[str, Any]]) -> dict[str, Any]:
    faults: Counter[str] = Counter()
    events: Counter[str] = Counter()
    for result in results:
        faults.update(result["faults"])
        events.update(result["events"])
    return {
        "sequences": len(results),
        "faults": dict(faults.most_common()),
        "events": dict(events.most_common()),
        "trials": sum(result["trials"] for result in results),
        "failed": [{key: result[key] for key in ("seed", "violations")} for result in results if result["violations"]],
    }


def share(given: argparse.Namespace, folder: Path, part: int) -> list[dict[str, Any]]:
    """Run every `--jobs`-th sequence; return their results."""
    soak = Soak(folder)
    results = []
    for seed in range(given.seed + part, given.seed + given.count, given.jobs):
        result = soak.run(plan_of(seed))
        results.append(result)
        for violation in result["violations"]:
            again = f"python -m tests.soak --count 1 --seed {seed} --folder FOLDER"
            print(f"seed {seed}: {violation}\n  again: {again}", file=sys.stderr, flush=True)  # noqa: T201
        if given.progress:
            print(json.dumps(result), file=sys.stderr, flush=True)  # noqa: T201
    return results


def run_all(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run the sequences in `--jobs` processes side by side."""
    began_s = time.monotonic()
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    load_mlflow()
    children = {}
    for part in range(given.jobs):
        place = folder / f"part {part}"
        place.mkdir(parents=True)
        child = os.fork()
        if child == 0:
            try:
                (place / "results.json").write_text(json.dumps(share(given, place, part)))
            except BaseException as error:
                print(f"part {part}: {error!r}", file=sys.stderr, flush=True)  # noqa: T201
                os._exit(1)
            os._exit(0)
        children[child] = place
    for child, place in children.items():
        assert os.waitpid(child, 0)[1] == 0, place
    results = [result for place in children.values() for result in json.loads((place / "results.json").read_text())]
    return summary(results) | {"seconds": round(time.monotonic() - began_s, 1)}


def main(given: argparse.Namespace) -> int:
    folder = given.folder or Path(tempfile.mkdtemp(prefix="chorale-soak-"))
    found = run_all(given, folder)
    print(json.dumps(found, indent=2))  # noqa: T201
    if given.folder is None and not found["failed"]:
        shutil.rmtree(folder)
    return 1 if found["failed"] else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--progress", action="store_true", help="print each result on stderr")
    sys.exit(main(parser.parse_args()))
