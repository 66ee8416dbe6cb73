"""What commands say of a program that was judged, and the repaired file that they write."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer

from chorale.synth.errors import InvalidInput
from chorale.synth.programs.check_execution import Verdict
from chorale.synth.programs.explanation import Explanation, explanations
from chorale.synth.programs.plans.explanation import plan_explanations
from chorale.synth.programs.plans.plan import ExecutionPlan
from chorale.synth.programs.postconditions import AnyProgram
from chorale.synth.programs.program import Program, ProgramViolation
from chorale.synth.targets.lift import with_max_bytes
from chorale.synth.targets.mscclpp_reading import is_plan_text
from chorale.tuner.files.read_write import read_file, write_file

_FOUND_BY_EXECUTION = frozenset(
    {"limit", "idle rank", "channels", "never used", "route", "race", "deadlock", "uninitialised", "reduction"}
    | {"result", "input changed", "late put"}
)

Fix = Annotated[
    bool,
    typer.Option("--fix", help="Write the program with the maxBytes that keeps it from hanging to the file of -o."),
]


def explained(program: AnyProgram, verdict: Verdict) -> list[Explanation | None]:
    """Return what is behind each violation of `verdict`; None where no more is known."""
    if not sound_enough(verdict):
        return [None] * len(verdict.violations)
    if isinstance(program, ExecutionPlan):
        return plan_explanations(program, verdict.violations)
    assert isinstance(program, Program)
    return explanations(program, verdict.violations)


def sound_enough(verdict: Verdict) -> bool:
    """Return whether a program can be executed, so that its instructions have turns and its faults a history."""
    return all(violation.rule in _FOUND_BY_EXECUTION for violation in verdict.violations)


def verdict_document(verdict: Verdict, behind: Sequence[Explanation | None]) -> dict[str, Any]:
    """Return `verdict` as JSON has it; `behind`: what is behind each violation."""
    texts = [
        {"violation": number, "text": item.text, "positions": [list(position) for position in item.positions]}
        for number, item in enumerate(behind)
        if item is not None
    ]
    return {
        "ok": not verdict.violations,
        "violations": _listed(verdict.violations),
        "explanations": texts,
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


def verdict_rows(document: Mapping[str, Any], most: int) -> Iterator[tuple[str, str]]:
    """Yield rule and words of each violation, with what is behind it, and of each notice; at most `most` violations."""
    violations = document.get("violations", [])
    behind = {item["violation"]: item["text"] for item in document.get("explanations", [])}
    for number, violation in enumerate(violations[:most]):
        yield violation["rule"], violation["message"]
        if number in behind:
            yield "", behind[number]
    if len(violations) > most:
        yield "...", f"{len(violations) - most} more"
    for notice in document.get("notices", []):
        yield notice["rule"], notice["message"]


def _listed(violations: Sequence[ProgramViolation]) -> list[dict[str, str]]:
    return [{"rule": violation.rule, "message": violation.message} for violation in violations]
