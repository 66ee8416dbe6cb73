"""What commands say of a program that was judged, and the repaired file that they write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from chorale.synth.errors import InvalidInput
from chorale.synth.programs.program import ProgramViolation
from chorale.synth.targets.bounded_text import with_max_bytes
from chorale.synth.targets.judge import Verdict
from chorale.synth.targets.mscclpp_json import is_plan_text
from chorale.tuner.files.read_write import read_file, write_file

Fix = Annotated[
    bool,
    typer.Option("--fix", help="Write the program with the maxBytes that keeps it from hanging to the file of -o."),
]


def verdict_document(verdict: Verdict) -> dict[str, Any]:
    """Return `verdict` as JSON has it."""
    return {
        "ok": not verdict.violations,
        "violations": _listed(verdict.violations),
        "notices": _listed(verdict.notices),
        "max_bytes": verdict.max_bytes,
    }


def write_bounded(file: str, verdict: Verdict, output: str | None) -> None:
    """Write the program in `file` to `output`, bounded to the sizes at which it cannot hang.

    InvalidInput without an output, or where a bound repairs nothing.
    """
    if output is None:
        raise InvalidInput("--fix writes a file", "no --output", "add -o FILE")
    text = read_file(file)
    if verdict.violations or is_plan_text(text):
        found = verdict.violations[0].message if verdict.violations else "a plan of one-sided operations"
        raise InvalidInput("--fix bounds programs that are right up to some size", found, "repair the program itself")
    write_file(output, text if verdict.max_bytes is None else with_max_bytes(text, verdict.max_bytes))


def _listed(violations: Sequence[ProgramViolation]) -> list[dict[str, str]]:
    return [{"rule": violation.rule, "message": violation.message} for violation in violations]
