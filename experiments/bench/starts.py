"""Whole commands on small networks, in processes of their own, beside a Python that does nothing."""

from __future__ import annotations

import os

from chorale.experiments.bench.benchmark import Benchmark, BenchmarkOutcome
from chorale.experiments.bench.processes import cost_of

_REPEATS = 3
_UNUSED = ("ray", "mlflow", "optuna", "matplotlib")
COMPLETE = "complete "
"""Begins a case that completes the rest of a line, as a shell asks for it."""

_IMPORTS = (
    "import sys\nfrom chorale.__main__ import main\ntry:\n    main()\n"
    f"finally:\n    print(*sorted(set(sys.modules) & set({_UNUSED!r})), file=sys.stderr)"
)


def started_command(case: str) -> BenchmarkOutcome:
    """Return which of the large libraries a command imports, and processor seconds of it, of `python -c pass` and of
    `python -c "import numpy"`: the least of several runs."""
    environment = dict(os.environ)
    arguments = case.split()
    if case.startswith(COMPLETE):
        line = case.removeprefix(COMPLETE)
        environment |= {"_CHORALE_COMPLETE": "complete_bash", "COMP_WORDS": line}
        environment["COMP_CWORD"] = str(len(line.split(" ")) - 1)
        arguments = []
    imports = cost_of(arguments, code=_IMPORTS, environment=environment).errors
    nothing, numpy, ours = [], [], []
    for _ in range(_REPEATS):
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
"""0.4, 0.9 and 1.5 s if a Python that does nothing takes 15 ms."""


START = Benchmark(
    name="start",
    reference="python -c pass, processor time",
    goals={
        **dict.fromkeys(("--version", "--help"), _START_GOAL),
        "synth bfb torus:4x4 --no-cache": _SYNTH_GOAL,
        **dict.fromkeys(
            (
                "complete chorale synth --coll",
                "topology show torus:4x4",
                "bound torus:4x4",
                "synth forest a100:2 --no-cache",
                "simulate bfb torus:4x4 --sizes 1M --link-gbps 10",
            ),
            _COMMAND_GOAL,
        ),
    },
    run=started_command,
    is_exact=False,
)
