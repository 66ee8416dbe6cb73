"""What the MSCCL targets share: the step element, the scanner's rules beyond XML, and `nop` chains of several waits.

A step carries one wait; further ones stand on `nop` steps before it and are joined again on reading.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from chorale.synth.programs.program import Instruction, ProgramViolation, Wait
from chorale.synth.targets.base import RawBlock, RawStep, XmlAttributes
from chorale.synth.targets.step_text import NOP
from chorale.synth.targets.xml_assembly import instruction_of


def read_msccl_step(attributes: XmlAttributes) -> RawStep:
    """Return the step that `attributes` describe; all ten are required on every step."""
    block, step = attributes.integer("depid", least=-1), attributes.integer("deps", least=-1)
    return RawStep(
        number=attributes.integer("s", least=0),
        type=attributes.text("type"),
        src=attributes.buffer_ref("srcbuf", "srcoff"),
        dst=attributes.buffer_ref("dstbuf", "dstoff"),
        count=attributes.integer("cnt", least=0),
        waits=(Wait(block, step),) if block >= 0 else (),
        published=attributes.flag("hasdep"),
    )


MAX_ATTRIBUTES = 16
LONGEST_VALUE = 255
LONGEST_FIRST_WORD = 250  # of a comment: it is read as a name, with what begins the comment and what follows

_TAG = re.compile(r"<!--.*?-->|<(?:[^\"'>]|\"[^\"]*\"|'[^']*')*>", re.DOTALL)
_STRICT_TAG = re.compile(r'</\w+>|<\w+(?: (?:\w+="[^"\r\n]*")?)*/?>')
_VALUE = re.compile(r'"([^"]*)"')
_FIRST_WORD = re.compile(r"<!--([^ >/\r\n]*)")


def text_findings(text: str) -> tuple[ProgramViolation, ...]:
    """Return how `text`, which is well-formed XML, breaks the scanner's rules; one finding per rule. O(characters)."""
    found: dict[str, ProgramViolation] = {}
    for message, offset in _faults(text):
        if message not in found:
            line = text.count("\n", 0, offset) + 1
            found[message] = ProgramViolation.at("text", f"line {line}: {message}")
    return tuple(found.values())


def tags_of(text: str) -> Iterator[tuple[int, str]]:
    """Yield where each tag and comment of `text` begins, and the tag. O(characters)."""
    for match in _TAG.finditer(text):
        yield match.start(), match.group()


def _faults(text: str) -> Iterator[tuple[str, int]]:
    if text.startswith("\ufeff"):
        yield "the file must begin without a byte order mark", 0
    end = 0
    for start, tag in tags_of(text):
        if text[end:start].strip(" \r\n\ufeff"):
            yield "only blanks and line ends may stand between elements", end
        end = start + len(tag)
        for message in _tag_faults(tag):
            yield message, start


def _tag_faults(tag: str) -> Iterator[str]:
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
        yield "values must hold no entities"


def fold_waits(
    rank: int, blocks: Sequence[RawBlock], findings: list[ProgramViolation]
) -> list[tuple[Instruction, ...]]:
    """Return the instructions of each block with all their waits, in terms of instruction numbers.

    A wait ends when the block waited on publishes that step or a later one: a step that does not publish
    stands for the next one that does. Where there is none the waiter hangs, which is a finding.
    """
    index_of = {block.id: index for index, block in enumerate(blocks)}
    targets = [_publishing(block) for block in blocks]
    folded = []
    for block in blocks:
        instructions: list[Instruction] = []
        pending: list[Wait] = []
        for step in block.steps:
            for wait in step.waits:
                target = _target(wait, index_of, targets)
                if target is None:
                    message = (
                        f"waits for step {wait.step} of block {wait.block}, which never publishes it or a later one"
                    )
                    findings.append(ProgramViolation.at("wait", message, rank, block.id, step.number))
                else:
                    pending.append(target)
            findings.extend(_misplaced_nops(rank, block.id, step, bool(pending)))
            if step.type != NOP:
                instructions.append(instruction_of(step, tuple(pending)))
                pending = []
        folded.append(tuple(instructions))
    return folded


def _publishing(block: RawBlock) -> list[int | None]:
    """Return, for each step of `block`, the instruction whose end a wait on it needs; None where none publishes."""
    result: list[int | None] = [None] * len(block.steps)
    number = sum(step.type != NOP for step in block.steps)
    publishing = None
    for index in range(len(block.steps) - 1, -1, -1):
        step = block.steps[index]
        if step.type != NOP:
            number -= 1
            publishing = number if step.published else publishing
        result[index] = publishing
    return result


def _target(wait: Wait, index_of: dict[int, int], targets: Sequence[Sequence[int | None]]) -> Wait | None:
    index = index_of.get(wait.block)
    if index is None or not 0 <= wait.step < len(targets[index]):
        return None
    target = targets[index][wait.step]
    return None if target is None else Wait(index, target)


def _misplaced_nops(rank: int, block: int, step: RawStep, pending: bool) -> list[ProgramViolation]:
    if step.waits:
        return []
    if step.type == NOP:
        return [ProgramViolation.at("nop", "a nop must carry a wait", rank, block, step.number)]
    if pending:
        return [ProgramViolation.at("nop", "a step after a nop must carry a wait itself", rank, block, step.number)]
    return []
