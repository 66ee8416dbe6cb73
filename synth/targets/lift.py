"""Lifting: a program is read back from the text of any target and checked against target, collective and network."""

import re
from collections.abc import Mapping, Sequence
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
from chorale.synth.programs.program import Program, RankProgram
from chorale.synth.targets.base import Lifted, XmlTarget
from chorale.synth.targets.judge import bounded, judge
from chorale.synth.targets.msccl_document import MAX_ATTRIBUTES, tags_of, text_findings
from chorale.synth.targets.mscclpp_reading import parse_plan
from chorale.synth.targets.mscclpp_text import plan_text
from chorale.synth.targets.registry import XML_TARGETS, target_named
from chorale.synth.targets.xml_reading import DocumentBody, XmlAttributes, read_document
from chorale.synth.topology.topology import Topology


def lift(text: bytes) -> Program:
    """Return the program that `text` holds.

    The target is detected. The text may come from anywhere: it is parsed in bounded memory, without entities
    and external references. InvalidInput for text that is no program of a known target, and for the first
    fault that a Program cannot express. What the program does is not checked: see `chorale.synth.targets.lift`.

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
        raise InvalidInput(f"a program must be sound ({finding.rule})", finding.message, "repair or lower it again")
    return lifted.program


def lift_code(text: bytes) -> AnyProgram:
    """Return the program, the plan or the library's call that `text` holds. InvalidInput as of `lift`."""
    if is_library_text(text):
        return parse_library_call(text)
    return parse_plan(text) if _is_plan_text(text) else lift(text)


def lift_with_findings(text: bytes, collective: CustomCollective | None = None) -> Lifted[Program]:
    """Return the program as `lift` does, with all faults of the text that a Program cannot express.

    collective: what it is to do, where the text cannot say so
    """
    document = read_xml(text, collective)
    return document.target.assemble(document.attributes, document.body)


@dataclass(frozen=True, slots=True)
class XmlDocument:
    """What was read of a text: the target that recognised it, the attributes of its root, and what stands below."""

    target: XmlTarget
    attributes: XmlAttributes
    body: DocumentBody


def read_xml(text: bytes, collective: CustomCollective | None = None) -> XmlDocument:
    """Return what `text` holds; InvalidInput for text that is no program of a known target. O(bytes)."""
    if text.lstrip()[:1] not in (b"<", b"\xef"):
        raise InvalidInput("a program must be an XML document", repr(text[:20]), "give a file made by `chorale lower`")
    chosen: list[XmlTarget] = []

    def choose(attributes: Mapping[str, str]) -> TargetLimits:
        chosen.append(_target_of(attributes))
        return chosen[-1].limits

    root, body = read_document(text, choose)
    # Steps of several waits are none for the scanner; without any step it may take a text of either form.
    if chosen[0].limits.single_wait or not _has_steps(body.ranks):
        body = body._replace(text_findings=text_findings(text.decode(errors="replace")))
    return XmlDocument(chosen[0], root.for_collective(collective), body)


def _has_steps(ranks: Sequence[RankProgram]) -> bool:
    return any(len(rank.columns.op) for rank in ranks)


def _target_of(attributes: Mapping[str, str]) -> XmlTarget:
    for target in XML_TARGETS:
        if target.recognises("algo", attributes):
            return target
    known = ", ".join(target.name for target in XML_TARGETS)
    found = f"format {attributes.get('format', 'none')!r}"
    raise InvalidInput("unknown target of a program", found, f"known are {known}")


def fitting_targets(text: bytes) -> list[str]:
    """Return all targets whose rules `text` keeps, whichever it was written for; InvalidInput as `lift`.

    Rules of the text, the limits and all else that shows without executing the program. The text is read once, and
    what targets with the same form of steps make of it shows in its root and the facts of its columns.
    O(bytes + targets * instructions).
    """
    return _fitting(read_xml(text))


def _fitting(document: XmlDocument) -> list[str]:
    return [target.name for target in XML_TARGETS if _fits(document, target)]


def _fits(document: XmlDocument, target: XmlTarget) -> bool:
    read_with = document.target.limits.single_wait
    if target.limits.single_wait != read_with and _has_steps(document.body.ranks):
        return False
    try:
        lifted = target.assemble(document.attributes, document.body)
    except InvalidInput:
        return False
    return not lifted.findings and not structure_violations(lifted.program, target.limits)


@dataclass(frozen=True, slots=True)
class LiftResult:
    """A program that was read back and judged.

    program:         what is right, for vectors of up to the largest size at which it cannot hang
    fitting_targets: the targets whose rules of text, structure and limits the file keeps
    """

    program: AnyProgram
    verdict: Verdict
    fitting_targets: tuple[str, ...]

    @property
    def text(self) -> str:
        """The same again, as its target writes it; only of programs without violations."""
        if isinstance(self.program, ExecutionPlan):
            return plan_text(self.program)
        assert isinstance(self.program, Program)
        return target_named(self.program.target).emit(self.program)


def read_program(text: bytes, topology: Topology, collective: CustomCollective | None = None) -> LiftResult:
    """Return what `text` holds, checked on `topology`; InvalidInput for text that is no program of a known target.

    collective: what it is to do, where the text cannot say so
    """
    if _is_plan_text(text):
        plan = parse_plan(text, collective=collective)
        targets = [] if plan_structure_violations(plan) else [plan.target]
        return LiftResult(plan, judge(Lifted(plan, ()), topology), tuple(targets))
    document = read_xml(text, collective)
    lifted = document.target.assemble(document.attributes, document.body)
    verdict = judge(lifted, topology)
    return LiftResult(bounded(lifted.program, verdict.max_bytes), verdict, tuple(_fitting(document)))


def read_checked(text: bytes, topology: Topology, collective: CustomCollective | None = None) -> AnyProgram:
    """Return what `text` holds, checked: CheckFailed unless it does what its collective says on `topology`.
    InvalidInput where it is too large for the check.

    collective: what it is to do, where the text cannot say so
    """
    lifted = read_unchecked(text, collective)
    verdict = judge(lifted, topology)
    for violation in verdict.violations:
        if violation.rule == "size":
            way_out = "use fewer ranks, channels, instances or chunks"
            raise InvalidInput("a program must be small enough to be checked", violation.message, way_out)
        rule = f"a program must do what its collective says ({violation.rule})"
        raise CheckFailed(rule, violation.message, "report this: the lowering is at fault")
    return bounded(lifted.program, verdict.max_bytes)


def read_unchecked(text: bytes, collective: CustomCollective | None = None) -> Lifted[AnyProgram]:
    """Return the program that `text` holds, before any check of what it does; `collective` as in `read_program`."""
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
    """Return `text`, an XML program, with the attribute that keeps its runtime from vectors above `max_bytes`.

    Of several documents the first <algo> gets it. InvalidInput where the text is no program, or has no room for a
    further attribute. O(bytes).
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
