"""Reads a program back from the text of any dialect."""

from __future__ import annotations

from synth.errors import CheckFailed, InvalidInput
from synth.lowering.check import check_program
from synth.lowering.connectivity import reachability
from synth.lowering.program import Program
from synth.lowering.target import Lifted
from synth.lowering.targets import XML_TARGETS
from synth.lowering.violation import Violation
from synth.lowering.xml_reader import read_document
from synth.topology.topology import Topology


def lift(text: bytes) -> Program:
    """Return the program that `text` holds.

    The dialect is detected. The text may come from anywhere: it is parsed in bounded memory, without entities
    and external references. InvalidInput for text that is no program of a known dialect, and for the first
    fault that a Program cannot express. What the program does is not checked: see `synth.lowering.check`.
    """
    lifted = lift_with_findings(text)
    for finding in lifted.findings:
        raise InvalidInput(f"a program must be sound ({finding.rule})", finding.message, "repair or lower it again")
    return lifted.program


def lift_with_findings(text: bytes) -> Lifted:
    """Return the program as `lift` does, with all faults of the text that a Program cannot express."""
    if text.lstrip()[:1] not in (b"<", b"\xef"):
        raise InvalidInput("a program must be an XML document", repr(text[:20]), "give a file made by `chorale lower`")
    target, raw = read_document(text, XML_TARGETS)
    return target.assemble(raw, text.decode(errors="replace"))


def checked_program(text: str, topology: Topology) -> Program:
    """Return the program that `text` holds; CheckFailed unless it does what its collective says on `topology`."""
    lifted = lift_with_findings(text.encode())
    for violation in violations_on(lifted, topology):
        rule = f"a program must do what its collective says ({violation.rule})"
        raise CheckFailed(rule, violation.message, "report this: the lowering is at fault")
    return lifted.program


def violations_on(lifted: Lifted, topology: Topology) -> list[Violation]:
    """Return the faults of the text, then whatever the program breaks when it runs on the ranks of `topology`."""
    found = list(lifted.findings)
    ranks = len(lifted.program.ranks)
    if ranks != topology.compute_count:
        message = f"the program is for {ranks} ranks, the topology has {topology.compute_count}"
        return [*found, Violation.at("ranks", message), *check_program(lifted.program)]
    return [*found, *check_program(lifted.program, reachability(topology))]
