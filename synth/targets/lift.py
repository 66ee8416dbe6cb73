"""Lifting: reads a program back from the text of any target and checks it against target, collective and network."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from chorale.synth.custom_collective import CustomCollective
from chorale.synth.errors import CheckFailed, InvalidInput
from chorale.synth.programs.check_execution import Verdict
from chorale.synth.programs.check_structure import structure_violations
from chorale.synth.programs.library_call import is_library_text, parse_library_call
from chorale.synth.programs.limits import TargetLimits
from chorale.synth.programs.plans.check_structure import plan_structure_violations
from chorale.synth.programs.plans.plan import ExecutionPlan
from chorale.synth.programs.postconditions import AnyProgram
from chorale.synth.programs.program import Program
from chorale.synth.targets.base import Lifted, XmlTarget
from chorale.synth.targets.judge import bounded, judge
from chorale.synth.targets.msccl_document import MAX_ATTRIBUTES, tags_of, text_findings
from chorale.synth.targets.mscclpp_reading import parse_plan
from chorale.synth.targets.mscclpp_text import plan_text
from chorale.synth.targets.registry import XML_TARGETS, target_named
from chorale.synth.targets.xml_reading import DocumentBody, XmlAttributes, read_document
from chorale.synth.topology.topology import Topology


def lift(text: bytes) -> Program:
    """Return the program in `text`, without checking what it does: see `read_program` for that.

    The target is detected. The text may come from anywhere: it is parsed in bounded memory, without entities and
    external references.

    Raises:
        InvalidInput: The text is no program of a known target, or has a fault that a Program cannot express.

    >>> from synth import LoweringOptions, SerialExecutor, lower, parse_collective, parse_topology, synthesize
    >>> from chorale.synth.targets.registry import target_named
    >>> ring = parse_topology("ring:4")
    >>> verified = synthesize("bfb", ring, parse_collective("allgather"), None, SerialExecutor())
    >>> program = lower(verified, LoweringOptions("msccl-xml"))
    >>> lift(target_named("msccl-xml").emit(program).encode()) == program
    True
    """
    lifted = lift_with_findings(text)
    for finding in lifted.findings:
        raise InvalidInput(f"the program is wrong ({finding.rule}): {{}}", finding.message, "repair or lower it again")
    return lifted.program


def lift_code(text: bytes) -> AnyProgram:
    """Return the program, plan or call of a library in `text`; InvalidInput as for `lift`."""
    if is_library_text(text):
        return parse_library_call(text)
    return parse_plan(text) if _is_plan_text(text) else lift(text)


def lift_with_findings(text: bytes, collective: CustomCollective | None = None) -> Lifted[Program]:
    """Return the program as `lift` does, with all faults of the text that a Program cannot express.

    collective: what the program is for, if the text does not contain it
    """
    document = read_xml(text, collective)
    return document.target.assemble(document.attributes, document.body)


@dataclass(frozen=True, slots=True)
class XmlDocument:
    """A parsed text: the target that recognised it, the attributes of its root, and its contents."""

    target: XmlTarget
    attributes: XmlAttributes
    body: DocumentBody

    @property
    def has_steps(self) -> bool:
        return any(len(rank.columns.op) for rank in self.body.ranks)

    def fitting_targets(self) -> list[str]:
        """Return the targets whose rules the document keeps. O(targets * instructions)."""
        return [target.name for target in XML_TARGETS if self._fits(target)]

    def _fits(self, target: XmlTarget) -> bool:
        if target.limits.single_wait != self.target.limits.single_wait and self.has_steps:
            return False
        try:
            lifted = target.assemble(self.attributes, self.body)
        except InvalidInput:
            return False
        return not lifted.findings and not structure_violations(lifted.program, target.limits)


def read_xml(text: bytes, collective: CustomCollective | None = None) -> XmlDocument:
    """Return the document in `text`; InvalidInput if it is no program of a known target. O(bytes)."""
    if text.lstrip()[:1] not in (b"<", b"\xef"):
        raise InvalidInput("a program must be an XML document", repr(text[:20]), "give a file made by `chorale lower`")
    chosen: list[XmlTarget] = []

    def choose(attributes: Mapping[str, str]) -> TargetLimits:
        for target in XML_TARGETS:
            if target.recognises("algo", attributes):
                chosen.append(target)
                return target.limits
        known = ", ".join(target.name for target in XML_TARGETS)
        found = f"format {attributes.get('format', 'none')!r}"
        raise InvalidInput("unknown target of a program: {}", found, f"known are {known}")

    root, body = read_document(text, choose)
    document = XmlDocument(chosen[0], root.for_collective(collective), body)
    # MSCCL's scanner reads no steps of several waits; without any step it may take a text of either form.
    if chosen[0].limits.single_wait or not document.has_steps:
        body = body._replace(text_findings=text_findings(text.decode(errors="replace")))
    return XmlDocument(document.target, document.attributes, body)


def fitting_targets(text: bytes) -> list[str]:
    """Return all targets whose rules `text` keeps, whichever it was written for; InvalidInput as for `lift`.

    These are the rules of the text, the limits and everything else that needs no execution.
    O(bytes + targets * instructions).
    """
    return read_xml(text).fitting_targets()


@dataclass(frozen=True, slots=True)
class LiftResult:
    """A program that was read back and judged.

    program:         the program, restricted to the sizes at which it cannot deadlock
    fitting_targets: the targets whose rules of text, structure and limits the file keeps
    """

    program: AnyProgram
    verdict: Verdict
    fitting_targets: tuple[str, ...]

    @property
    def text(self) -> str:
        """The program as its target writes it; only for programs without violations."""
        if isinstance(self.program, ExecutionPlan):
            return plan_text(self.program)
        assert isinstance(self.program, Program)
        return target_named(self.program.target).emit(self.program)


def read_program(text: bytes, topology: Topology, collective: CustomCollective | None = None) -> LiftResult:
    """Return the program in `text`, checked on `topology`; InvalidInput if it is no program of a known target.

    collective: what the program is for, if the text does not contain it
    """
    if _is_plan_text(text):
        plan = parse_plan(text, collective=collective)
        targets = [] if plan_structure_violations(plan) else [plan.target]
        return LiftResult(plan, judge(Lifted(plan, ()), topology), tuple(targets))
    document = read_xml(text, collective)
    lifted = document.target.assemble(document.attributes, document.body)
    verdict = judge(lifted, topology)
    return LiftResult(bounded(lifted.program, verdict.max_bytes), verdict, tuple(document.fitting_targets()))


def read_checked(text: bytes, topology: Topology, collective: CustomCollective | None = None) -> AnyProgram:
    """Return the program in `text`, which does what its collective says on `topology`.

    Args:
        text: A program file.
        topology: The network.
        collective: What the program is for, if the text does not contain it.

    Raises:
        CheckFailed: It does something else.
        InvalidInput: It is too large for the check.
    """
    lifted = read_unchecked(text, collective)
    verdict = judge(lifted, topology)
    for violation in verdict.violations:
        if violation.rule == "size":
            hint = "use fewer ranks, channels, instances or chunks"
            raise InvalidInput("the program is too large to be checked: {}", violation.message, hint)
        rule = f"a program must do what its collective says ({violation.rule})"
        raise CheckFailed(rule, violation.message, "report this: the lowering is at fault")
    return bounded(lifted.program, verdict.max_bytes)


def read_unchecked(text: bytes, collective: CustomCollective | None = None) -> Lifted[AnyProgram]:
    """Return the program in `text`, before any check of what it does; `collective` as in `read_program`."""
    if is_library_text(text):
        return Lifted(parse_library_call(text), ())
    if _is_plan_text(text):
        return Lifted(parse_plan(text, collective=collective), ())
    return lift_with_findings(text, collective)


def _is_plan_text(text: bytes) -> bool:
    return text.lstrip()[:1] == b"{"


_BOUND = re.compile(r'(?<= maxBytes=")[^"]*(?=")')
_END = re.compile(r" */?>\Z")


def with_max_bytes(text: bytes, max_bytes: int) -> bytes:
    """Return `text`, an XML program, with an attribute that keeps its runtime from using it above `max_bytes`.

    If the text has several documents, the first <algo> gets the attribute. O(bytes).

    Raises:
        InvalidInput: The text is no program, or has no room for a further attribute.
    """
    document = read_xml(text)
    characters = text.decode()
    first, tag = next((at, tag) for at, tag in tags_of(characters) if re.match(r"<algo\b", tag))
    value = document.target.stated_max_bytes(max_bytes)
    changed, count = _BOUND.subn(str(value), tag, count=1)
    if count == 0:
        if tag.count('="') >= MAX_ATTRIBUTES:
            rule = f"<algo> must have fewer than {MAX_ATTRIBUTES} attributes to be given maxBytes"
            raise InvalidInput(rule, MAX_ATTRIBUTES, "remove one that no runtime reads")
        end = _END.search(tag)
        assert end is not None
        changed = f'{tag[: end.start()]} maxBytes="{value}"{end.group().strip()}'
    return (characters[:first] + changed + characters[first + len(tag) :]).encode()
