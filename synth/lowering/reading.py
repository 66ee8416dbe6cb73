"""What a program file of any kind holds, and whether it is right on a network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from synth.collective import Collective
from synth.errors import CheckFailed
from synth.lowering.connectivity import reachability
from synth.lowering.lift import fitting_dialects, lift_with_findings, violations_on
from synth.lowering.mscclpp_json import NAME as MSCCLPP
from synth.lowering.plans.check import check_plan
from synth.lowering.plans.check_structure import plan_structure_violations
from synth.lowering.plans.plan import Plan
from synth.lowering.plans.read import plan_of_text
from synth.lowering.plans.text import text_of
from synth.lowering.program import Program
from synth.lowering.resources import Resources, resources_of, resources_of_plan
from synth.lowering.target import Lifted
from synth.lowering.targets import target_named
from synth.lowering.violation import Violation
from synth.topology.topology import Topology


@dataclass(frozen=True, slots=True)
class Reading:
    """A program or plan that was read back and checked.

    text:     the same again, as its target writes it
    dialects: the targets whose rules of text, structure and limits the file keeps
    program:  what was read
    """

    target: str
    collective: Collective
    ranks: int
    chunks: int
    in_place: bool
    resources: Resources
    violations: tuple[Violation, ...]
    dialects: tuple[str, ...]
    text: str
    program: Program | Plan


def read_on(text: bytes, topology: Topology) -> Reading:
    """Return what `text` holds, checked on `topology`; InvalidInput for text that is no program of a known target."""
    content = read_unchecked(text)
    return reading_of(content, text, faults_on(content, topology))


def reading_of(content: Lifted | Plan, text: bytes, violations: Sequence[Violation] = ()) -> Reading:
    """Return what is to be said of `content`, read from `text`, whose check found `violations`."""
    if isinstance(content, Plan):
        return _reading_of_plan(content, violations)
    program, target = content.program, target_named(content.program.target)
    return Reading(
        program.target,
        program.collective,
        len(program.ranks),
        program.chunks,
        program.in_place,
        resources_of(program, target.limits),
        tuple(violations),
        tuple(fitting_dialects(text)),
        "" if violations else target.emit(program),
        program,
    )


def read_checked(text: bytes, topology: Topology) -> Program | Plan:
    """Return what `text` holds, checked: CheckFailed unless it does what its collective says on `topology`."""
    content = read_unchecked(text)
    for violation in faults_on(content, topology):
        rule = f"a program must do what its collective says ({violation.rule})"
        raise CheckFailed(rule, violation.message, "report this: the lowering is at fault")
    return content if isinstance(content, Plan) else content.program


def read_unchecked(text: bytes) -> Lifted | Plan:
    """Return the program or plan that `text` holds, before any check of what it does."""
    return plan_of_text(text) if text.lstrip()[:1] == b"{" else lift_with_findings(text)


def faults_on(content: Lifted | Plan, topology: Topology) -> list[Violation]:
    """Return what is wrong with `content` on `topology`."""
    if isinstance(content, Plan):
        return [*_unconnected(content, topology), *check_plan(content)]
    return violations_on(content, topology)


def _reading_of_plan(plan: Plan, violations: Sequence[Violation]) -> Reading:
    fits = not plan_structure_violations(plan)
    return Reading(
        MSCCLPP,
        plan.collective,
        len(plan.ranks),
        plan.chunks,
        plan.in_place,
        resources_of_plan(plan),
        tuple(violations),
        (MSCCLPP,) if fits else (),
        text_of(plan),
        plan,
    )


def _unconnected(plan: Plan, topology: Topology) -> list[Violation]:
    ranks = len(plan.ranks)
    if ranks != topology.compute_count:
        message = f"the plan is for {ranks} ranks, the topology has {topology.compute_count}"
        return [Violation.at("ranks", message)]
    connected = reachability(topology)
    return [
        Violation.at("route", f"writes to rank {peer}, to which the network has no path", rank)
        for rank, body in enumerate(plan.ranks)
        for peer in sorted({peer for peer, _ in body.remotes if peer < ranks})
        if not connected(rank, peer)
    ]
