"""Reads programs of any target from text, and checks that they are correct for their target, collective and network."""

import re
from collections.abc import Iterator, Mapping

from chorale.synth.collective import CustomCollective
from chorale.synth.errors import CheckFailed, InvalidInput
from chorale.synth.programs.check_structure import TargetLimits
from chorale.synth.programs.library_call import is_library_text, parse_library_call
from chorale.synth.programs.program import AnyProgram, Program, ProgramViolation
from chorale.synth.targets.judge import bounded, judge
from chorale.synth.targets.mscclpp_text import parse_plan
from chorale.synth.targets.registry import XML_TARGETS, Lifted, XmlTarget
from chorale.synth.targets.xml_text import LONGEST_VALUE, MAX_ATTRIBUTES, read_document
from chorale.synth.topology.topology import Topology

LONGEST_FIRST_WORD = 250  # characters; the scanner treats the first word of a comment as a name

_TAG = re.compile(r"<!--.*?-->|<(?:[^\"'>]|\"[^\"]*\"|'[^']*')*>", re.DOTALL)
_STRICT_TAG = re.compile(r'</\w+>|<\w+(?: (?:\w+="[^"\r\n]*")?)*/?>')
_USUAL_TAG = re.compile(r'</\w+>|<\w+(?: \w+="[^"&\r\n]{0,255}"){0,16}/?>')  # a tag that breaks no rule
_VALUE = re.compile(r'"([^"]*)"')
_FIRST_WORD = re.compile(r"<!--([^ >/\r\n]*)")


def text_findings(text: str) -> tuple[ProgramViolation, ...]:
    """Return one finding for each rule of MSCCL's scanner that the well-formed XML `text` breaks. O(characters)."""
    found: dict[str, ProgramViolation] = {}
    for message, offset in _faults(text):
        if message not in found:
            line = text.count("\n", 0, offset) + 1
            found[message] = ProgramViolation.at("text", f"line {line}: {message}")
    return tuple(found.values())


def _faults(text: str) -> Iterator[tuple[str, int]]:
    if text.startswith("\ufeff"):
        yield "the file must begin without a byte order mark", 0
    end = 0
    for match in _TAG.finditer(text):
        start, tag = match.start(), match.group()
        if text[end:start].strip(" \r\n\ufeff"):
            yield "only blanks and line ends may stand between elements", end
        end = start + len(tag)
        for message in _tag_faults(tag):
            yield message, start


def _tag_faults(tag: str) -> Iterator[str]:
    if _USUAL_TAG.fullmatch(tag):
        return
    if tag.startswith("<!--"):
        word = _FIRST_WORD.match(tag)
        if word is not None and "=" in word[1]:
            yield "the first word of a comment must not contain ="
        if word is not None and len(word[1]) > LONGEST_FIRST_WORD:
            yield f"the first word of a comment must have at most {LONGEST_FIRST_WORD} characters"
        return
    if tag.startswith("<?"):
        yield "there must be no declaration"
    elif not _STRICT_TAG.fullmatch(tag):
        yield 'attributes must be written as name="value" with spaces before each'
    values = _VALUE.findall(tag)
    if _VALUE.sub("", tag).count(" ") > MAX_ATTRIBUTES:
        yield f"an element must have at most {MAX_ATTRIBUTES} attributes, where each further space counts as one"
    if any(len(value) > LONGEST_VALUE for value in values):
        yield f"a value must have at most {LONGEST_VALUE} characters"
    if any("&" in value for value in values):
        yield "values must not contain entities"


def lift(text: bytes) -> Program:
    """Return the program in `text`. Unlike `read_checked`, this does not check what the program does.

    The target is detected from the text. Untrusted text is safe: parsing takes bounded memory, and entities and
    external references are not expanded.

    Raises:
        InvalidInput: The text is not a program for a known target, or has a fault that a Program cannot represent.

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
    """Return the program, plan or library call in `text`. Raises InvalidInput like `lift`."""
    if is_library_text(text):
        return parse_library_call(text)
    return parse_plan(text) if _is_plan_text(text) else lift(text)


def lift_with_findings(text: bytes, collective: CustomCollective | None = None) -> Lifted[Program]:
    """Read a program like `lift`, but return faults in the text as findings instead of raising them. O(bytes).

    collective: definition of the custom collective, required if the text only contains its name
    """
    if text.lstrip()[:1] not in (b"<", b"\xef"):
        fixes = {
            b"PAR1": "this is a schedule: check it with `chorale verify`, or lower it",
            b"\x1f\x8b": "unpack the file",
        }
        fix = next((fix for mark, fix in fixes.items() if text.startswith(mark)), "give a file made by `chorale lower`")
        raise InvalidInput("a program must be an XML document", repr(text[:20].decode(errors="replace").strip()), fix)
    chosen: list[XmlTarget] = []

    def choose(attributes: Mapping[str, str]) -> TargetLimits:
        for target in XML_TARGETS:
            if target.recognises(attributes):
                chosen.append(target)
                return target.limits
        known = ", ".join(target.name for target in XML_TARGETS)
        found = f"format {attributes.get('format', 'none')!r}"
        raise InvalidInput("unknown target of a program: {}", found, f"known are {known}")

    root, body = read_document(text, choose)
    if chosen[0].limits.single_wait:
        body = body._replace(text_findings=text_findings(text.decode(errors="replace")))
    return chosen[0].assemble(root, body, collective)


def read_checked(text: bytes, topology: Topology, collective: CustomCollective | None = None) -> AnyProgram:
    """Return the program in `text` after checking that it executes its collective correctly on `topology`.

    Args:
        text: A program file.
        topology: The network.
        collective: Definition of the custom collective, required if the text only contains its name.

    Raises:
        CheckFailed: The program is wrong.
        InvalidInput: The program is too large for the check.
    """
    lifted = read_unchecked(text, collective)
    verdict = judge(lifted, topology)
    for violation in verdict.violations:
        if violation.rule == "size":
            hint = "use fewer ranks, channels, instances or chunks"
            raise InvalidInput("the program is too large to be checked: {}", violation.message, hint)
        rule = f"a program must compute its collective correctly ({violation.rule})"
        raise CheckFailed(rule, violation.message, "report this: the lowering is at fault")
    return bounded(lifted.program, verdict.max_bytes)


def read_unchecked(text: bytes, collective: CustomCollective | None = None) -> Lifted[AnyProgram]:
    """Return the program in `text` without checking what the program does. `collective`: as in `read_checked`."""
    if is_library_text(text):
        return Lifted(parse_library_call(text), ())
    if _is_plan_text(text):
        return Lifted(parse_plan(text, collective=collective), ())
    return lift_with_findings(text, collective)


def _is_plan_text(text: bytes) -> bool:
    return text.lstrip()[:1] == b"{"
