"""Reads a program back from the text of any dialect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from chorale.synth.errors import InvalidInput
from chorale.synth.lowering.check import check_program, rank_count_violations
from chorale.synth.lowering.check_structure import structure_violations
from chorale.synth.lowering.connectivity import reachability
from chorale.synth.lowering.definition import AnyProgram
from chorale.synth.lowering.program import Program
from chorale.synth.lowering.target import Lifted
from chorale.synth.lowering.targets import XML_TARGETS
from chorale.synth.lowering.violation import ProgramViolation
from chorale.synth.lowering.xml_reader import read_document
from chorale.synth.lowering.xml_target import XmlTarget
from chorale.synth.topology.topology import Topology


def lift(text: bytes) -> Program:
    """Return the program that `text` holds.

    The dialect is detected. The text may come from anywhere: it is parsed in bounded memory, without entities
    and external references. InvalidInput for text that is no program of a known dialect, and for the first
    fault that a Program cannot express. What the program does is not checked: see `chorale.synth.lowering.check`.

    >>> from synth import LoweringOptions, SerialExecutor, lower, parse_collective, parse_topology, synthesize
    >>> from chorale.synth.lowering.targets import target_named
    >>> ring = parse_topology("ring:4")
    >>> verified = synthesize("bfb", ring, parse_collective("allgather"), None, SerialExecutor())
    >>> program = lower(verified, LoweringOptions("msccl-xml"))
    >>> lift(target_named("msccl-xml").emit(program).encode()) == program
    True
    """
    lifted = lift_with_findings(text)
    for finding in lifted.findings:
        raise InvalidInput(f"a program must be sound ({finding.rule})", finding.message, "repair or lower it again")
    return lifted.program


def lift_with_findings(text: bytes) -> Lifted[Program]:
    """Return the program as `lift` does, with all faults of the text that a Program cannot express."""
    if text.lstrip()[:1] not in (b"<", b"\xef"):
        raise InvalidInput("a program must be an XML document", repr(text[:20]), "give a file made by `chorale lower`")
    target, raw = read_document(text, _target_of)
    return target.assemble(raw, text.decode(errors="replace"))


def _target_of(attributes: Mapping[str, str]) -> XmlTarget:
    for target in XML_TARGETS:
        if target.recognises("algo", attributes):
            return target
    known = ", ".join(target.name for target in XML_TARGETS)
    found = f"format {attributes.get('format', 'none')!r}"
    raise InvalidInput("the dialect of a program must be one that is known", found, f"known are {known}")


def fitting_targets(text: bytes) -> list[str]:
    """Return the dialects whose rules `text` keeps as it stands, whichever it was written for.

    Rules of the text, the limits and all else that shows without executing the program. O(dialects * bytes).
    """
    return [target.name for target in XML_TARGETS if _fits(text, target)]


def _fits(text: bytes, target: XmlTarget) -> bool:
    try:
        _, raw = read_document(text, lambda _: target)
        lifted = target.assemble(raw, text.decode(errors="replace"))
    except InvalidInput:
        return False
    return not lifted.findings and not structure_violations(lifted.program, target.limits)


def violations_on(lifted: Lifted[AnyProgram], topology: Topology) -> list[ProgramViolation]:
    """Return the faults of the text, then whatever the program breaks when it runs on the ranks of `topology`."""
    other = list(rank_count_violations(lifted.program, topology))
    found = [*lifted.findings, *other]
    if other:
        return [*found, *check_program(lifted.program)]
    found += check_program(lifted.program, reachability(topology))
    if lifted.out_of_place is not None:
        found += [
            replace(fault, message=f"out of place: {fault.message}") for fault in check_program(lifted.out_of_place)
        ]
    return found
