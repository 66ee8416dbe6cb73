"""Programs of hundreds of ranks as text: lowered, held to limits, written and read back.

The reference is one reading of the text by Python's own XML parser.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from typing import Any

import defusedxml.ElementTree

from chorale.synth.collective import parse_collective
from chorale.synth.executor.serial import SerialExecutor
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.lowering.streaming import streamed_text
from chorale.synth.methods.catalog import synthesize
from chorale.synth.topology.spec import parse_topology
from chorale.tuner.reports.stopwatch import Stopwatch


def written_program(case: str) -> tuple[dict[str, Any], Mapping[str, float]]:
    """Return facts of the text, and the seconds of both; `case` reads TARGET METHOD COLLECTIVE SPEC."""
    target, method, collective, spec = case.split()
    verified = synthesize(method, parse_topology(spec), parse_collective(collective), None, SerialExecutor())
    stages = Stopwatch()
    for stage in ("loading of machine code", "ours"):
        with stages.stage(stage):
            text = b"".join(streamed_text(verified, LoweringOptions(target)))
    with stages.stage("reference"):
        elements = _elements(text)
    facts = {"bytes": len(text), "elements": elements, "sha256": hashlib.sha256(text).hexdigest()}
    return facts, stages.seconds


def _elements(text: bytes) -> int:
    """Return the number of elements, which are dropped as they end."""
    count = 0
    for _, element in defusedxml.ElementTree.iterparse(io.BytesIO(text)):
        count += 1
        element.clear()
    return count
