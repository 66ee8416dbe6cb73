"""A folder by which a job loads a tuning table's programs into MSCCL++ 0.10: plans, choices, and a module of Python.

Only allreduce: of other collectives it is not documented whether a request states the bytes of a rank or of the vector.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from chorale.job.table.model import JobEntry, Table
from chorale.synth.errors import CheckFailed, ChoraleError
from chorale.synth.programs.plans.check_structure import plan_structure_violations
from chorale.synth.programs.plans.plan import ExecutionPlan
from chorale.synth.programs.plans.run import plan_execution_violations
from chorale.synth.programs.plans.translate import plan_of
from chorale.synth.targets.lift import lift
from chorale.synth.targets.mscclpp_text import plan_text

MODULE = "chorale_plans.py"
_COLLECTIVE = "allreduce"


def mscclpp_files(table: Table) -> dict[str, bytes]:
    """Return the files of the folder, by name: one plan for each range of sizes, of all ranks of `table`.

    CheckFailed where it has no program of an allreduce, or one that is not right as a plan.
    """
    entries = [entry for entry in table.entries if entry.group is None and entry.collective == _COLLECTIVE]
    choices, files = [], {}
    for number, entry in enumerate(entry for entry in entries if entry.program is not None):
        plan = _plan(table, entry)
        name = f"chorale-{number:02d}-{str(entry.program)[:12]}"
        files[f"{name}.json"] = plan_text(plan).encode()
        choices.append(
            {
                "name": name,
                "file": f"{name}.json",
                "collective": _COLLECTIVE,
                "min_bytes": plan.min_bytes,
                "max_bytes": plan.max_bytes,
                "in_place": plan.in_place,
                "program": entry.program,
            }
        )
    if not choices:
        rule = "a table for MSCCL++ must have a program for an allreduce of all ranks"
        raise CheckFailed(rule, "none", "write the table of such a campaign")
    files["choices.json"] = (json.dumps({"ranks": table.ranks, "choices": choices}, indent=1) + "\n").encode()
    files[MODULE] = Path(__file__).with_name("mscclpp_module.py").read_bytes()
    return files


def _plan(table: Table, entry: JobEntry) -> ExecutionPlan:
    """Return the program of `entry` as a plan for its sizes, checked."""
    program = lift(table.programs[str(entry.program)].text)
    plan = plan_of(replace(program, min_bytes=0, max_bytes=0))
    last = plan.max_bytes if entry.max_bytes is None else min(entry.max_bytes, plan.max_bytes)
    if last < entry.min_bytes:
        rule = f"a plan of {program.name} can do {plan.max_bytes} bytes at most"
        raise CheckFailed(rule, f"an entry from {entry.min_bytes} on", "use more chunks or another program")
    plan = replace(plan, min_bytes=entry.min_bytes, max_bytes=last)
    for violation in plan_structure_violations(plan) or plan_execution_violations(plan):
        raise _wrong(program.name, violation.message)
    return plan


def _wrong(name: str, message: str) -> ChoraleError:
    return CheckFailed(f"the plan of {name} must do what its collective says", message, "export another program")
