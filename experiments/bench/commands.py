"""Whole commands on up to 65,536 ranks, in processes of their own, beside the limits that they are meant to keep."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chorale.experiments.bench.benchmark import Benchmark, BenchmarkOutcome, limits_of
from chorale.experiments.bench.processes import cost_of

_LOWER = "lower "
"""Begins a case that reads lower METHOD COLLECTIVE SPEC TARGET: the schedule is made and kept before the command."""


def run_command(case: str) -> BenchmarkOutcome:
    """Run the command, of which `case` is the line without `chorale`, in a data folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "CHORALE_HOME": folder}
        output = Path(folder) / "output"
        words = _lower_words(case, output, environment) if case.startswith(_LOWER) else [*case.split(), "--json"]
        cost = cost_of(words, environment=environment)
        facts = _facts(json.loads(cost.output))
        if output.exists():
            facts |= {"bytes": output.stat().st_size, "sha256": _digest(output)}
    limit_s = limits_of("commands")[case].seconds
    seconds = {"processor": cost.processor_s, "passed": cost.passed_s, "limit": limit_s}
    return BenchmarkOutcome(facts, limit_s / min(cost.processor_s, cost.passed_s), seconds, cost.peak_mb)


def _lower_words(case: str, output: Path, environment: Mapping[str, str]) -> list[str]:
    """Write the schedule of a case into a file; return the command that lowers it."""
    _, method, collective, spec, target = case.split()
    schedule = str(output.with_name("schedule.parquet"))
    cost_of(["synth", method, spec, "--collective", collective, "-o", schedule], environment=environment)
    return ["lower", schedule, "--target", target, "-o", str(output), "--json"]


def _facts(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return of what a command prints what is the same on every machine."""
    if "optimality" in document:
        return {"id": document["schedule"]["id"], "gap": document["optimality"]["gap"]}
    if "frontier" in document:
        ends = [[row["steps"], row["bandwidth_factor"]] for row in document["frontier"]]
        return {"steps_and_bandwidth": ends, "left_out": document["left_out"]}
    if "failures" in document:
        return {"failures": len(document["failures"]), "without_plan": document["without_plan"]}
    if "upper" in document:
        return {"within_half_a_percent": document["upper"] <= document["lower"] * 1.005}
    return {}


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


COMMANDS = Benchmark(
    name="commands",
    reference="the limit of each, in seconds",
    goals=dict.fromkeys(limits_of("commands"), 1.0),
    run=run_command,
    is_exact=False,
)
