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
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from chorale.tuner.tracking.mlflow_store import MlflowStore, load_mlflow
from tests.soak.launches import warm_up
from tests.soak.sequence import Plan, Sequence, plan_of

SETTINGS = {"RAY_USAGE_STATS_ENABLED": "0", "MLFLOW_DISABLE_TELEMETRY": "true", "COLUMNS": "400"}


class Soak:
    """Runs sequences in `folder`, of which those that pass are removed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / f"part {os.getpid()}"
        self._template = self._folder / "template" / "mlflow.db"
        self._template.parent.mkdir(parents=True)
        child = os.fork()  # makes an empty database of MLflow's, as no thread may live when this process forks later
        if child == 0:
            MlflowStore(f"sqlite:///{self._template}", self._template.parent)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        with closing(sqlite3.connect(self._template)) as database:
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # so that the one file holds everything
        warm = Sequence(Plan(-1, "plain", ()), self._folder / "warm", self._template, None)
        warm.prepare()
        warm_up(warm.words, warm.home)

    def run(self, plan: Plan) -> dict[str, Any]:
        """Return what happened in the sequence of `plan`, beside a run of the same campaign without faults."""
        calm, folder = self._folder / f"calm {plan.campaign}", self._folder / str(plan.seed)
        if not calm.exists():
            found = Sequence(Plan(-1, plan.campaign, ()), calm, self._template, None).run()
            assert not found["violations"], found
        result = Sequence(plan, folder, self._template, calm).run()
        if not result["violations"]:
            shutil.rmtree(folder)
        return result


_soaks: list[Soak] = []
"""The one of a process of the pool."""


def run_seed(seed: int) -> dict[str, Any]:
    return _soaks[0].run(plan_of(seed))


def run_all(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    began_s = time.monotonic()
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    load_mlflow()
    results, faults, events = [], Counter[str](), Counter[str]()
    with get_context("fork").Pool(given.jobs, lambda: _soaks.append(Soak(folder))) as pool:
        for result in pool.imap_unordered(run_seed, range(given.seed, given.seed + given.count)):
            results.append(result)
            faults.update(result["faults"])
            events.update(result["events"])
            for violation in result["violations"]:
                again = f"python -m tests.soak --count 1 --seed {result['seed']} --folder FOLDER"
                print(f"seed {result['seed']}: {violation}\n  again: {again}", file=sys.stderr, flush=True)  # noqa: T201
            if given.progress:
                print(json.dumps(result), file=sys.stderr, flush=True)  # noqa: T201
    return {
        "sequences": len(results),
        "faults": dict(faults.most_common()),
        "events": dict(events.most_common()),
        "trials": sum(result["trials"] for result in results),
        "failed": [{key: result[key] for key in ("seed", "violations")} for result in results if result["violations"]],
        "seconds": round(time.monotonic() - began_s, 1),
    }


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
