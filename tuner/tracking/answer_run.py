"""The answer of an experiment as a run of MLflow."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from chorale.tuner.tracking.mlflow_store import MlflowStore

FOLDER = "chorale-experiments"
"""The experiment of MLflow that all answers go to."""


def log_experiment(
    store: MlflowStore, document: Mapping[str, Any], pictures: Mapping[str, bytes], start_ms: int, end_ms: int
) -> str:
    """Record `document`, what `chorale experiment NAME --json` prints, and return the id of the run.

    Parameters say what was asked, metrics how many rows there are and hold; rows and `pictures` (by file name) are
    artifacts. Raises Unavailable if MLflow does not answer.
    """
    name = document["experiment"]
    run_id = store.start_run(store.experiment(FOLDER), name, {"experiment": name}, start_ms)
    rows = document["rows"]
    holding = sum(1 for row in rows if row["holds"])
    metrics = {"rows": len(rows), "rows_that_hold": holding, "seconds": document["seconds"]}
    asked = {"experiment": name, "quick": str(document["quick"]).lower(), "source": document["source"]}
    store.log(run_id, metrics, asked, {"question": document["question"]}, end_ms)
    store.upload(run_id, {"answer.json": json.dumps(document, indent=2).encode(), **pictures})
    store.end_run(run_id, "FINISHED", end_ms)
    return run_id
