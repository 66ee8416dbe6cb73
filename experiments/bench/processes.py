"""Benchmarks of complete commands, each run in a separate process.

Each command is compared with its limits and with a Python process that does nothing.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from chorale.synth.errors import CheckFailed


@dataclass(frozen=True, slots=True)
class BenchmarkOutcome:
    """The outcome of one benchmark case.

    facts:   counts and certificates as JSON, identical on every machine
    ratio:   factor by which our code is better than the reference
    seconds: times for the measured code and the reference; empty if exact costs are compared
    peak_mb: the separate process's peak resident size, in 10**6 bytes
    """

    facts: Mapping[str, Any]
    ratio: float
    seconds: Mapping[str, float]
    peak_mb: float | None = None

    @staticmethod
    def of(facts: Mapping[str, Any], seconds: Mapping[str, float]) -> BenchmarkOutcome:
        """Return the outcome for the times in `seconds`: keys `ours` and `reference`."""
        return BenchmarkOutcome(facts, seconds["reference"] / seconds["ours"], seconds)


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A benchmark. `run` runs one case; `goals` maps each case to the ratio that it should reach.

    is_exact: whether ratios compare exact costs. If so, a missed goal is a regression, not the effect of a busy
      machine.
    """

    name: str
    reference: str
    goals: Mapping[str, float]
    run: Callable[[str], BenchmarkOutcome]
    is_exact: bool

    @property
    def cases(self) -> tuple[str, ...]:
        return tuple(self.goals)


COMMAND = (
    "import sys\nfrom chorale.__main__ import main\ntry:\n    main()\n"
    "finally:\n    print(*(line for line in open('/proc/self/status') if line.startswith('VmHWM')), file=sys.stderr)"
)
"""Runs `chorale` and prints its peak memory from /proc, because `wait4` would include the parent's memory."""


@dataclass(frozen=True, slots=True)
class ProcessCost:
    """The resources that a process used, and its output.

    processor_s: user and system time, including that of its child processes
    passed_s:    wall-clock time from start to end
    peak_mb:     peak resident size in 10**6 bytes if `COMMAND` ran, otherwise None
    """

    processor_s: float
    passed_s: float
    peak_mb: float | None
    output: str
    errors: str


def cost_of(
    words: Sequence[str], *, code: str = COMMAND, environment: Mapping[str, str] | None = None, timeout_s: float = 600
) -> ProcessCost:
    """Run `code` in this Python with arguments `words`. Raises CheckFailed if it fails or exceeds `timeout_s`."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began_s = time.perf_counter()
    try:
        ended = subprocess.run(  # noqa: S603 - this Python
            [sys.executable, "-P", "-c", code, *words],
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=True,
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        raise CheckFailed(
            "a command of the benchmark must succeed", " ".join(words), str(error.stderr)[-300:]
        ) from None
    passed_s = time.perf_counter() - began_s
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    peaks_kb = re.findall(r"^VmHWM:\s+(\d+) kB$", ended.stderr, re.MULTILINE)
    peak_mb = int(peaks_kb[-1]) * 1024 / 10**6 if peaks_kb else None
    return ProcessCost(processor_s, passed_s, peak_mb, ended.stdout, ended.stderr)


@functools.cache
def command_limits() -> Mapping[str, tuple[float, float | None]]:
    """Return each command's limits: seconds on two cores, and one process's memory in 10**6 bytes (None: no limit)."""
    text = resources.files("chorale.experiments").joinpath("data/limits.json").read_text(encoding="utf-8")
    return {case: tuple(limits) for case, limits in json.loads(text).items()}


_LOWER = "lower "
"""Prefix of a case `lower METHOD COLLECTIVE SPEC TARGET`, whose schedule is built and saved before the command runs."""


def run_command(case: str) -> BenchmarkOutcome:
    """Run `chorale` with the arguments in `case`, in a new data folder."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "CHORALE_HOME": folder}
        output = Path(folder) / "output"
        words = [*case.split(), "--json"]
        if case.startswith(_LOWER):
            _, method, collective, spec, target = case.split()
            schedule = str(output.with_name("schedule.parquet"))
            cost_of(["synth", method, spec, "--collective", collective, "-o", schedule], environment=environment)
            words = ["lower", schedule, "--target", target, "-o", str(output), "--json"]
        cost = cost_of(words, environment=environment)
        facts = _facts(json.loads(cost.output))
        if output.exists():
            with output.open("rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
            facts |= {"bytes": output.stat().st_size, "sha256": digest}
    limit_s, limit_mb = command_limits()[case]
    seconds = {"processor": cost.processor_s, "passed": cost.passed_s, "limit": limit_s}
    ratio = limit_s / min(cost.processor_s, cost.passed_s)
    if limit_mb and cost.peak_mb:
        ratio = min(ratio, limit_mb / cost.peak_mb)
    return BenchmarkOutcome(facts, ratio, seconds, cost.peak_mb)


def _facts(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a command's output that is identical on every machine."""
    if "optimality" in document:
        return {"id": document["schedule"]["id"], "gap": document["optimality"]["gap"]}
    if "frontier" in document:
        return {"steps_and_bandwidth": [[row["steps"], row["bandwidth_factor"]] for row in document["frontier"]]}
    if "failures" in document:
        return {"failures": len(document["failures"]), "without_plan": document["without_plan"]}
    if "upper" in document:
        return {"within_half_a_percent": document["upper"] <= document["lower"] * 1.005}
    return {}


COMMANDS = Benchmark(
    name="commands",
    reference="the limits of each, in seconds and megabytes",
    goals=dict.fromkeys(command_limits(), 1.0),
    run=run_command,
    is_exact=False,
)


_START_REPEATS = 3
_UNUSED = ("ray", "mlflow", "optuna", "matplotlib")
COMPLETE = "complete "
"""Prefix of a case that completes a command line as a shell does."""

_IMPORTS = (
    "import sys\nfrom chorale.__main__ import main\ntry:\n    main()\n"
    f"finally:\n    print(*sorted(set(sys.modules) & set({_UNUSED!r})), file=sys.stderr)"
)


def started_command(case: str) -> BenchmarkOutcome:
    """Return which large libraries a command imports, and its processor time in seconds (minimum of several runs).

    For comparison, `python -c pass` and `python -c "import numpy"` are also timed.
    """
    environment = dict(os.environ)
    arguments = case.split()
    if case.startswith(COMPLETE):
        line = case.removeprefix(COMPLETE)
        environment |= {"_CHORALE_COMPLETE": "complete_bash", "COMP_WORDS": line}
        environment["COMP_CWORD"] = str(len(line.split(" ")) - 1)
        arguments = []
    imports = cost_of(arguments, code=_IMPORTS, environment=environment).errors
    nothing, numpy, ours = [], [], []
    for _ in range(_START_REPEATS):
        nothing.append(cost_of([], code="pass").processor_s)
        numpy.append(cost_of([], code="import numpy").processor_s)
        ours.append(cost_of(arguments, environment=environment))
    seconds = {
        "ours": min(cost.processor_s for cost in ours),
        "reference": min(nothing),
        "numpy": min(numpy),
        "passed": min(cost.passed_s for cost in ours),
    }
    facts = {"large_libraries": imports.splitlines()[-1].split()}
    return BenchmarkOutcome(
        facts, seconds["reference"] / seconds["ours"], seconds, max(cost.peak_mb or 0 for cost in ours)
    )


_START_GOAL, _SYNTH_GOAL, _COMMAND_GOAL = 0.0375, 0.0167, 0.01
"""Goals as ratios. They mean 0.4, 0.9 and 1.5 s if a Python process that does nothing takes 15 ms."""


START = Benchmark(
    name="start",
    reference="python -c pass, processor time",
    goals={
        **dict.fromkeys(("--version", "--help"), _START_GOAL),
        "synth bfb torus:4x4": _SYNTH_GOAL,
        **dict.fromkeys(
            (
                "complete chorale synth --coll",
                "topology show torus:4x4",
                "bound torus:4x4",
                "synth forest a100:2",
                "simulate bfb torus:4x4 --sizes 1M --link-gbps 10",
            ),
            _COMMAND_GOAL,
        ),
    },
    run=started_command,
    is_exact=False,
)
