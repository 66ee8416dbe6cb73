"""Programs of hundreds of ranks as text: lowered, held to limits, written and read back.

The reference is one reading of the text by Python's own XML parser.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from typing import Any
from xml.parsers import expat

import defusedxml.ElementTree

from chorale.experiments.bench.benchmark import Benchmark, BenchmarkOutcome
from chorale.synth.build.build import unexecuted_text
from chorale.synth.collective import parse_collective
from chorale.synth.executor.serial import SerialExecutor
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.methods.catalog import synthesize
from chorale.synth.topology.spec import parse_topology
from chorale.tuner.reports.tables import Stopwatch


def written_program(case: str) -> tuple[dict[str, Any], Mapping[str, float]]:
    """Return facts of the text, and the seconds of both; `case` reads TARGET METHOD COLLECTIVE SPEC."""
    target, method, collective, spec = case.split()
    verified = synthesize(method, parse_topology(spec), parse_collective(collective), None, SerialExecutor())
    stages = Stopwatch()
    for stage in ("loading of machine code", "ours"):
        with stages.stage(stage):
            text = unexecuted_text(verified, LoweringOptions(target)).encode()
    with stages.stage("reference"):
        # Return the number of elements, which are dropped as they end.
        count = 0
        for _, element in defusedxml.ElementTree.iterparse(io.BytesIO(text)):
            count += 1
            element.clear()
        elements = count
    facts = {"bytes": len(text), "elements": elements, "sha256": hashlib.sha256(text).hexdigest()}
    return facts, stages.seconds


def program_at_scale(case: str) -> tuple[dict[str, Any], Mapping[str, float]]:
    """Return facts of a text of many ranks, and the seconds of making it and of the XML parser, which does nothing with
    what it reads; `case` as for `written_program`."""
    target, method, collective, spec = case.split()
    verified = synthesize(method, parse_topology(spec), parse_collective(collective), None, SerialExecutor())
    stages = Stopwatch()
    with stages.stage("ours"):
        text = unexecuted_text(verified, LoweringOptions(target)).encode()
    parser = expat.ParserCreate("utf-8")
    with stages.stage("reference"):
        parser.Parse(text, True)
    facts = {"bytes": len(text), "ranks": text.count(b"<gpu "), "sha256": hashlib.sha256(text).hexdigest()}
    return facts, stages.seconds


_PROGRAMS_GOAL = 0.2


def _run_programs(case: str) -> BenchmarkOutcome:
    facts, seconds = written_program(case)
    return BenchmarkOutcome(facts, seconds["reference"] / seconds["ours"], seconds)


PROGRAMS = Benchmark(
    name="programs",
    reference="Python's ElementTree, which reads the text once",
    goals=dict.fromkeys(
        (
            "msccl-xml bfb allgather torus:16x16",
            "msccl-executor-xml bfb allgather hypercube:8",
            "oneccl-xml bfb allreduce hypercube:8",
        ),
        _PROGRAMS_GOAL,
    ),
    run=_run_programs,
    is_exact=False,
)


def _run_ranks(case: str) -> BenchmarkOutcome:
    facts, seconds = program_at_scale(case)
    return BenchmarkOutcome(facts, seconds["reference"] / seconds["ours"], seconds)


RANKS = Benchmark(
    name="ranks",
    reference="Python's expat, which reads the text once and drops it",
    goals={"oneccl-xml bfb allgather hypercube:10": 0.05},
    run=_run_ranks,
    is_exact=False,
)
