"""Whole commands on small networks, in processes of their own, beside a Python that does nothing."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from chorale.experiments.bench.benchmark import Benchmark, BenchmarkOutcome
from chorale.synth.errors import CheckFailed

_REPEATS = 3
_UNUSED = ("ray", "mlflow", "optuna", "matplotlib", "networkx", "scipy", "pyarrow", "pydantic", "numba")
COMPLETE = "complete "
"""Begins a case that completes the rest of a line, as a shell asks for it."""

_COMMAND = "import sys; from chorale.__main__ import main; main()"
_IMPORTS = (
    "import sys\nfrom chorale.__main__ import main\ntry:\n    main()\n"
    f"finally:\n    print(*sorted(set(sys.modules) & set({_UNUSED!r})), file=sys.stderr)"
)


def started_command(case: str) -> tuple[dict[str, Any], Mapping[str, float]]:
    """Return which of the large libraries a command imports, and processor seconds of it and of `python -c pass`: the
    least of several runs."""
    environment = dict(os.environ)
    arguments = case.split()
    if case.startswith(COMPLETE):
        line = case.removeprefix(COMPLETE)
        environment |= {"_CHORALE_COMPLETE": "complete_bash", "COMP_WORDS": line}
        environment["COMP_CWORD"] = str(len(line.split(" ")) - 1)
        arguments = []
    _, errors = _run(_IMPORTS, arguments, environment)
    seconds = {"ours": float("inf"), "reference": float("inf")}
    for _ in range(_REPEATS):
        for name, code, words in (("reference", "pass", []), ("ours", _COMMAND, arguments)):
            seconds[name] = min(seconds[name], _run(code, words, environment)[0])
    return {"large_libraries": errors.splitlines()[-1].split()}, seconds


def _run(code: str, arguments: list[str], environment: Mapping[str, str]) -> tuple[float, str]:
    """Return the processor seconds of a process, and its errors. CheckFailed if it fails."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-c", code, *arguments]
    run = subprocess.run(  # noqa: S603 - this Python
        command, env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if run.returncode:
        raise CheckFailed("a command of the benchmark must succeed", " ".join(arguments), run.stderr[-200:])
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, run.stderr


_START_GOAL, _COMMAND_GOAL = 0.1, 0.04
"""0.15 and 0.4 s where a Python that does nothing takes 15 ms."""


def _run_start(case: str) -> BenchmarkOutcome:
    facts, seconds = started_command(case)
    return BenchmarkOutcome(facts, seconds["reference"] / seconds["ours"], seconds)


START = Benchmark(
    name="start",
    reference="python -c pass, processor time",
    goals={
        **dict.fromkeys(("--version", "--help", "complete chorale synth --coll"), _START_GOAL),
        **dict.fromkeys(
            (
                "topology show torus:4x4",
                "bound torus:4x4",
                "synth bfb torus:4x4 --no-cache",
                "synth forest a100:2 --no-cache",
                "simulate bfb torus:4x4 --sizes 1M --link-gbps 10",
            ),
            _COMMAND_GOAL,
        ),
    },
    run=_run_start,
    is_exact=False,
)
