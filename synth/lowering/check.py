"""Checks a program, wherever it came from, against its dialect and its collective."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from chorale.synth.lowering.check_execution import execution_violations
from chorale.synth.lowering.check_structure import structure_violations
from chorale.synth.lowering.connectivity import reachability
from chorale.synth.lowering.definition import AnyProgram
from chorale.synth.lowering.plans.check_execution import plan_execution_violations
from chorale.synth.lowering.plans.check_structure import plan_structure_violations
from chorale.synth.lowering.plans.plan import ExecutionPlan
from chorale.synth.lowering.program import Program
from chorale.synth.lowering.targets import target_named
from chorale.synth.lowering.violation import ProgramViolation
from chorale.synth.topology.topology import Topology

Connected = Callable[[int, int], bool]
"""Whether data can travel from one rank to another, directly or through others."""

_HARMLESS_TO_EXECUTE = frozenset({"limit", "idle rank", "channels", "never used"})


def check_program(program: AnyProgram, connected: Connected | None = None) -> list[ProgramViolation]:
    """Return every rule that `program` breaks; an empty list means that it does what its collective says.

    First the rules that show in the text (limits of the dialect, buffers, peers, connections, waits), then, if
    it can be executed at all, what it does: races, deadlocks, chunks read before they are written, wrong sums,
    wrong results, a changed input; of one-sided operations also writes that may come after the call.
    `connected` says which ranks the network joins; without it all are.
    """
    found = _structure(program)
    if connected is not None:
        found.extend(_unconnected(program, connected))
    if all(violation.rule in {*_HARMLESS_TO_EXECUTE, "route"} for violation in found):
        found.extend(_execution(program))
    return found


def execution_blockers(program: Program, topology: Topology) -> list[ProgramViolation]:
    """Return why `program` cannot even be executed on `topology`, whether or not it then does what it should.

    The rules that show in the text, but for those that do not matter to who executes it: limits of its dialect, ranks
    without a block and the declared number of channels.
    """
    other = list(rank_count_violations(program, topology))
    found = other or [*structure_violations(program), *_unconnected(program, reachability(topology))]
    return [violation for violation in found if violation.rule not in _HARMLESS_TO_EXECUTE]


def rank_count_violations(program: AnyProgram, topology: Topology) -> Iterator[ProgramViolation]:
    """Yield the rule that a program has as many ranks as its network, if it is broken."""
    if len(program.ranks) != topology.compute_count:
        message = f"the program is for {len(program.ranks)} ranks, the topology has {topology.compute_count}"
        yield ProgramViolation.at("ranks", message)


def _structure(program: AnyProgram) -> list[ProgramViolation]:
    if isinstance(program, ExecutionPlan):
        return plan_structure_violations(program)
    assert isinstance(program, Program)
    return structure_violations(program, target_named(program.target).limits)


def _execution(program: AnyProgram) -> list[ProgramViolation]:
    if isinstance(program, ExecutionPlan):
        return plan_execution_violations(program)
    assert isinstance(program, Program)
    return execution_violations(program)


def _unconnected(program: AnyProgram, connected: Connected) -> Iterator[ProgramViolation]:
    ranks = range(len(program.ranks))
    for sender, receiver in sorted(program.peers()):
        if sender in ranks and receiver in ranks and not connected(sender, receiver):
            yield ProgramViolation.at("route", f"sends to rank {receiver}, to which the network has no path", sender)
