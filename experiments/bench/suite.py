"""The benchmarks by name, their runs, and what is compared with what is expected. The command imports this by name."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Sequence
from importlib import resources
from typing import Any

from chorale.experiments.bench import benchmarks
from chorale.experiments.bench.benchmarks import Benchmark
from chorale.synth.errors import InvalidInput

BENCHMARKS = (benchmarks.BFB, benchmarks.BOUNDS, benchmarks.FOREST, benchmarks.RINGS)


def chosen(names: Sequence[str]) -> tuple[Benchmark, ...]:
    """Return the benchmarks of these names, all without any; InvalidInput for one that is not known."""
    known = {benchmark.name: benchmark for benchmark in BENCHMARKS}
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1) or list(known)
            raise InvalidInput("a benchmark must be one that is known", name or '""', f"choose from {', '.join(close)}")
    return tuple(known[name] for name in dict.fromkeys(names or known))


def expected_facts() -> dict[str, Any]:
    """Return the facts of every case, by benchmark and case."""
    text = resources.files("chorale.experiments").joinpath("data/bench.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


def rows_of(benchmark: Benchmark) -> Iterator[dict[str, Any]]:
    """Run every case; yield it as JSON has it. `holds` is false where facts, or exact ratios, are not as expected."""
    expected = expected_facts().get(benchmark.name, {})
    for case in benchmark.cases:
        outcome = benchmark.run(case)
        wanted = expected.get(case, {})
        goal_met = outcome.ratio >= benchmark.goals[case]
        differing = [key for key in {**wanted, **outcome.facts} if wanted.get(key) != outcome.facts.get(key)]
        yield {
            "benchmark": benchmark.name,
            "case": case,
            "facts": dict(outcome.facts),
            "differing": differing,
            "reference": benchmark.reference,
            "ratio": outcome.ratio,
            "goal": benchmark.goals[case],
            "goal_met": goal_met,
            "seconds": dict(outcome.seconds),
            "holds": not differing and (goal_met or not benchmark.is_exact),
        }
