"""Reads program documents from untrusted XML: no entities, no DTD, one rank at a time as objects, sizes checked first.

Elements nest algo > gpu > tb > step. A step has one wait at most, and further ones stand on `nop` steps before it (the
form of MSCCL), or it has all its waits (ours). Ranks become columns as they end.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple
from xml.parsers import expat

from chorale.synth.custom_collective import CustomCollective
from chorale.synth.errors import InvalidInput
from chorale.synth.programs.limits import TargetLimits
from chorale.synth.programs.program import (
    BUFFERS,
    NO_PEER,
    OPS,
    ColumnBlocks,
    ProgramViolation,
    RankProgram,
    columns_from,
)
from chorale.synth.targets.xml_writing import MAX_VALUE_CHARACTERS, NOP

MAX_TEXT_BYTES = 2**30
MAX_ELEMENTS = 2**24
"""Of a text, which take some 100 bytes of memory each."""
MAX_ATTRIBUTES = 16
MAX_TAG_BYTES = 2**21  # more than 16 of the longest values, and of comments
SLICE_BYTES = 2**16
MAX_DOCUMENTS = 64
MAX_KINDS_SKIPPED = 20
LARGEST_INTEGER = 2**63 - 1

_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,18})\Z")
_WAIT = re.compile(r"[0-9]{1,7}:[0-9]{1,7}\Z")
_BUFFERS: dict[str, int] = {buffer: number for number, buffer in enumerate(BUFFERS)}
_TYPES = {op.value: number for number, op in enumerate(OPS)}
_NOP = len(OPS)
_SINGLE_TYPES = _TYPES | {NOP: _NOP}
STEP_ATTRIBUTES = frozenset(["s", "type", "srcbuf", "srcoff", "dstbuf", "dstoff", "cnt", "waits"])
"""Of the form with all waits on a step, which has no others."""
_FLAGS = {"0": False, "1": True}
MOST_USUAL_WAITS = 4096  # whose text is surely shorter than the longest value
_SKIPPED = "skipped"
_CHILD_OF = {"": "algo", "algo": "gpu", "gpu": "tb", "tb": "step", "step": "", _SKIPPED: ""}
_FURTHER_DOCUMENT = expat.errors.codes[expat.errors.XML_ERROR_JUNK_AFTER_DOC_ELEMENT]
_COUNTS: dict[str, int] = {str(number): number for number in range(2**14)}
_KNOWN_NUMBERS: dict[str, int] = {"-1": -1} | _COUNTS
"""What most texts hold, so that they need not be checked one by one."""


class XmlAttributes:
    """The attributes of one element, read with checks. Errors name the element and its line.

    collective: what the program is to do, where somebody says so besides the file
    """

    __slots__ = ("_element", "_line", "_values", "collective")

    def __init__(
        self, element: str, line: int, values: Mapping[str, str], collective: CustomCollective | None = None
    ) -> None:
        self._element = element
        self._line = line
        self._values = values
        self.collective = collective

    def for_collective(self, collective: CustomCollective | None) -> XmlAttributes:
        """Return the attributes of a program that is for `collective`, whatever `coll` says."""
        return XmlAttributes(self._element, self._line, self._values, collective)

    @property
    def location(self) -> str:
        return f"<{self._element}> in line {self._line}"

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def refuse_unknown(self, names: frozenset[str]) -> None:
        """Raise InvalidInput for an attribute that is not among `names`."""
        for name in sorted(self._values.keys() - names):
            raise InvalidInput(f"{self.location} must have known attributes only", name, "remove it")

    def text(self, name: str, default: str | None = None) -> str:
        value = self._values.get(name, default)
        if value is None:
            raise InvalidInput(f"{self.location} must have {name}", "nothing", f'add {name}="..."')
        return value

    def integer(self, name: str, default: int | None = None, least: int = -LARGEST_INTEGER) -> int:
        """Return a plain decimal integer of 64 bits, at least `least`."""
        number = _KNOWN_NUMBERS.get(self._values.get(name, ""))
        if number is not None and number >= least:
            return number
        value = self.text(name, None if default is None else str(default))
        if not _INTEGER.match(value) or not least <= int(value) <= LARGEST_INTEGER:
            bound = f" of 64 bits and not below {least}" if least > -LARGEST_INTEGER else " of 64 bits"
            rule = f"{name} of {self.location} must be a plain decimal integer{bound}"
            raise InvalidInput(rule, repr(value), "write it as in 0, 12 or -1")
        return int(value)

    def flag(self, name: str, default: bool | None = None) -> bool:
        value = self.text(name, None if default is None else str(int(default)))
        if value not in ("0", "1"):
            raise InvalidInput(f"{name} of {self.location} must be 0 or 1", repr(value), "write 0 or 1")
        return value == "1"

    def buffer(self, name: str) -> int:
        """Return the index into BUFFERS of the buffer that a letter names."""
        letter = self.text(name)
        if letter not in _BUFFERS:
            raise InvalidInput(f"{name} of {self.location} must be i, o or s", repr(letter), "name one of the buffers")
        return _BUFFERS[letter]


class DocumentBody(NamedTuple):
    """What stands below the root of a document.

    ranks:         what each executes
    findings:      faults of elements that a Program cannot express
    text_findings: where the text breaks the rules of the scanner of MSCCL, for steps of one wait
    notices:       what readers pass over
    """

    ranks: tuple[RankProgram, ...]
    findings: tuple[ProgramViolation, ...] = ()
    text_findings: tuple[ProgramViolation, ...] = ()
    notices: tuple[ProgramViolation, ...] = ()


class _Step(NamedTuple):
    """One step element. `op`: an index into OPS, or _NOP; operands as in `RankColumns`; `published` says whether the
    text allows others to wait for it."""

    number: int
    op: int
    src_buffer: int
    src_offset: int
    dst_buffer: int
    dst_offset: int
    count: int  # type: ignore[assignment]  # shadows tuple.count
    waits: tuple[tuple[int, int], ...]
    published: bool


class _Block(NamedTuple):
    """One thread block element with its steps in file order."""

    id: int
    send: int
    recv: int
    channel: int
    steps: list[_Step]


class _Rank(NamedTuple):
    """One rank element with its blocks in file order."""

    id: int
    chunks: tuple[int, int, int]
    blocks: list[_Block]


LimitsChooser = Callable[[Mapping[str, str]], TargetLimits]
"""Returns the limits of the target of a document from the attributes of its root; InvalidInput for none."""


def read_document(
    text: bytes, choose: LimitsChooser, most_elements: int = MAX_ELEMENTS, most_bytes: int = MAX_TEXT_BYTES
) -> tuple[XmlAttributes, DocumentBody]:
    """Return root and contents of `text`; InvalidInput for anything that is not such a document.

    As the loaders of MSCCL do, this passes over elements that they do not know, and takes the first <algo> of several
    documents in a row; the contents say so. oneccl-xml allows neither. O(bytes) time. Memory grows with the elements
    only, and the first one too many, or too long, ends the reading.
    """
    if len(text) > most_bytes:
        raise InvalidInput(f"a program must be at most {most_bytes} bytes", len(text), "split the collective")
    builders: list[_Builder] = []
    first: int | None = 0
    while first is not None:
        if len(builders) == MAX_DOCUMENTS:
            raise InvalidInput(f"a file must have at most {MAX_DOCUMENTS} documents", "more", "split the file")
        builders.append(_Builder(choose, most_elements, sum(builder.elements for builder in builders)))
        first = _parse(builders[-1], text, first)
    chosen = next((builder for builder in builders if builder.root is not None), None)
    if chosen is None or chosen.root is None or chosen.limits is None:
        raise InvalidInput("a program must have a root element <algo>", "none", "write the file again")
    notices = chosen.notices()
    if len(builders) > 1:
        if not chosen.limits.single_wait:
            raise InvalidInput("a program must be one document", f"{len(builders)} in a row", "keep one")
        message = f"the file holds {len(builders)} documents in a row, of which the first <algo> is taken"
        notices.append(ProgramViolation.at("documents", message))
    return chosen.root, chosen.body()._replace(notices=tuple(notices))


def _parse(builder: _Builder, text: bytes, first: int) -> int | None:
    """Parse the document that begins at byte `first`; return where the next one begins, None where none does.

    The text is given slice by slice: the parser keeps a tag until its end, however far that is.
    """
    view, parser = memoryview(text), builder.parser
    try:
        for start in range(first, len(text), SLICE_BYTES):
            end = start + SLICE_BYTES
            parser.Parse(bytes(view[start:end]), False)
            if end - first - parser.CurrentByteIndex > MAX_TAG_BYTES:
                rule = f"tags and comments must have at most {MAX_TAG_BYTES} bytes"
                raise InvalidInput(rule, f"more in line {parser.CurrentLineNumber}", "write the file again")
        parser.Parse(b"", True)
    except expat.ExpatError as error:
        if error.code != _FURTHER_DOCUMENT:
            raise InvalidInput("a program must be well-formed XML", str(error), "write the file again") from None
        return first + int(parser.ErrorByteIndex)
    return None


class _Builder:
    """Receives the parser's events for one document. root, limits: None for a document of something else."""

    def __init__(self, choose: LimitsChooser, most_elements: int, elements_before: int) -> None:
        self.parser = expat.ParserCreate("utf-8")
        self.parser.buffer_text = True
        self.parser.XmlDeclHandler = _refuse_encodings
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._characters
        self.parser.StartDoctypeDeclHandler = _refuse_doctype
        self._choose = choose
        self._most_elements = most_elements
        self._elements_before = elements_before
        self.root: XmlAttributes | None = None
        self.limits: TargetLimits | None = None
        self._single_wait = True
        self._rank = _Rank(0, (0, 0, 0), [])
        self._ranks: dict[int, tuple[RankProgram, list[ProgramViolation]]] = {}
        self._path = [""]
        self._skipped: Counter[tuple[str, str]] = Counter()
        self.elements = 0

    def body(self) -> DocumentBody:
        """Return the ranks in the order of their numbers, and the faults that they cannot express."""
        assert self.root is not None
        assert self.limits is not None
        count = rank_count(self.root, self.limits)
        for number in self._ranks:
            if number >= count:
                raise InvalidInput("the id of a gpu must be below ngpus", number, f"ngpus is {count}")
        missing = ProgramViolation.at("missing rank", "the file has no gpu element for it")
        ranks, findings = [], []
        for number in range(count):
            rank, faults = self._ranks.get(number, (RankProgram(0, 0, 0, ()), None))
            ranks.append(rank)
            findings += [ProgramViolation.at(missing.rule, missing.message, number)] if faults is None else faults
        return DocumentBody(tuple(ranks), tuple(findings))

    def notices(self) -> list[ProgramViolation]:
        """Return what readers pass over."""
        return [
            ProgramViolation.at("skipped", f"readers pass over <{element}> under <{parent}> ({count} of them)")
            for (element, parent), count in sorted(self._skipped.items())
        ]

    def _start(self, element: str, values: dict[str, str]) -> None:
        self.elements += 1
        if self._elements_before + self.elements > self._most_elements:
            rule = f"a program must have at most {self._most_elements} elements"
            raise InvalidInput(rule, f"more in line {self.parser.CurrentLineNumber}", "split the collective")
        if element == "step" and self._path[-1] == "tb":
            usual = _usual_step(values, self._single_wait)
            if usual is not None:
                self._path.append(element)
                self._rank.blocks[-1].steps.append(usual)
                return
        line = self.parser.CurrentLineNumber
        _check_size(element, line, values)
        parent = self._path[-1]
        expected = _CHILD_OF[parent]
        if element != expected:
            self._skip(element, parent, expected, line)
            self._path.append(_SKIPPED)
            return
        self._path.append(element)
        attributes = XmlAttributes(element, line, values)
        if element == "step":
            self._rank.blocks[-1].steps.append((_single_step if self._single_wait else _joined_step)(attributes))
        elif element == "tb":
            send, recv, channel = (attributes.integer(name, least=-1) for name in ("send", "recv", "chan"))
            self._rank.blocks.append(_Block(attributes.integer("id", least=0), send, recv, channel, []))
        elif element == "gpu":
            if self.limits is not None and len(self._ranks) == self.limits.ranks:
                raise InvalidInput(f"a program must have at most {self.limits.ranks} gpu elements", "more", "use fewer")
            chunks = (attributes.integer(name, least=-1) for name in ("i_chunks", "o_chunks", "s_chunks"))
            inputs, outputs, scratch = (max(0, count) for count in chunks)
            self._rank = _Rank(attributes.integer("id", least=0), (inputs, outputs, scratch), [])
        else:
            self.limits, self.root = self._choose(values), attributes
            self._single_wait = self.limits.single_wait

    def _skip(self, element: str, parent: str, expected: str, line: int) -> None:
        """Note an element that the loaders pass over; refuse it where they crash, or in oneccl-xml."""
        if parent == "step" or (self.limits is not None and not self.limits.single_wait):
            rule = f"line {line} must hold <{expected}>" if parent != "step" else "a step must be empty"
            raise InvalidInput(rule, f"<{element[:40]}>", "nest algo > gpu > tb > step")
        if parent not in ("", _SKIPPED) and len(self._skipped) < MAX_KINDS_SKIPPED:
            self._skipped[element[:40], parent] += 1

    def _end(self, _element: str) -> None:
        if self._path.pop() != "gpu":
            return
        rank = self._rank
        if rank.id in self._ranks:
            raise InvalidInput("the ids of gpu elements must differ", rank.id, "keep one of them")
        self._ranks[rank.id] = _program_of_rank(rank, self._single_wait)

    def _characters(self, text: str) -> None:
        if not text.isspace():
            line = self.parser.CurrentLineNumber
            raise InvalidInput("elements must hold no text", f"{text[:40]!r} in line {line}", "remove it")


def _check_size(element: str, line: int, values: dict[str, str]) -> None:
    if len(values) > MAX_ATTRIBUTES:
        rule = f"<{element}> in line {line} must have at most {MAX_ATTRIBUTES} attributes"
        raise InvalidInput(rule, len(values), "readers drop what comes after; remove some")
    longest = max(map(len, values.values()), default=0)
    if longest > MAX_VALUE_CHARACTERS:
        rule = f"attribute values of <{element}> in line {line} must have at most {MAX_VALUE_CHARACTERS} characters"
        raise InvalidInput(rule, longest, "shorten the value")


def _refuse_encodings(_version: str, encoding: str | None, _standalone: int) -> None:
    if encoding is not None and encoding.lower() not in ("utf-8", "us-ascii"):
        raise InvalidInput("a program must be XML in UTF-8", encoding[:40], "write the file again")


def _refuse_doctype(name: str, *_rest: object) -> None:
    raise InvalidInput("a program must have no document type declaration", f"DOCTYPE {name[:40]}", "remove it")


def rank_count(attributes: XmlAttributes, limits: TargetLimits) -> int:
    """Return how many ranks a document is for; InvalidInput for more than its target takes."""
    count = attributes.integer("ngpus", least=1)
    if count > limits.ranks:
        raise InvalidInput(f"ngpus must be at most {limits.ranks}", count, "use fewer ranks")
    return count


def _usual_step(values: Mapping[str, str], single_wait: bool) -> _Step | None:
    """Return the step that `values` say, None for one with anything unusual, which `XmlAttributes` reads or refuses."""
    try:
        if single_wait:
            block = _KNOWN_NUMBERS[values["depid"]]
            waits: tuple[tuple[int, int], ...] = ((block, _KNOWN_NUMBERS[values["deps"]]),) if block >= 0 else ()
            published, size = _FLAGS[values["hasdep"]], 10
        else:
            pairs = [word.split(":") for word in values["waits"].split(" ")] if "waits" in values else []
            waits, published = tuple([(_COUNTS[block], _COUNTS[step]) for block, step in pairs]), True
            size = 8 if pairs else 7
        step = _Step(
            _COUNTS[values["s"]],
            (_SINGLE_TYPES if single_wait else _TYPES)[values["type"]],
            _BUFFERS[values["srcbuf"]],
            _KNOWN_NUMBERS[values["srcoff"]],
            _BUFFERS[values["dstbuf"]],
            _KNOWN_NUMBERS[values["dstoff"]],
            _COUNTS[values["cnt"]],
            waits,
            published,
        )
    except (KeyError, ValueError):
        return None
    return step if len(values) == size and len(waits) < MOST_USUAL_WAITS else None


def _single_step(attributes: XmlAttributes) -> _Step:
    """Return a step of MSCCL; all ten attributes are required."""
    block, step = attributes.integer("depid", least=-1), attributes.integer("deps", least=-1)
    waits = ((block, step),) if block >= 0 else ()
    return _step(attributes, _SINGLE_TYPES, waits, attributes.flag("hasdep"))


def _joined_step(attributes: XmlAttributes) -> _Step:
    """Return a step with all its waits; `waits` is optional, every other attribute required."""
    attributes.refuse_unknown(STEP_ATTRIBUTES)
    text = attributes.text("waits", "")
    words = text.split(" ") if text else []
    if not all(_WAIT.match(word) for word in words):
        rule = f"waits of {attributes.location} must be block:step pairs with one space between them"
        raise InvalidInput(rule, repr(text), 'write it as in "0:3 2:1"')
    pairs = (word.split(":") for word in words)
    return _step(attributes, _TYPES, tuple((int(block), int(step)) for block, step in pairs), True)


def _step(
    attributes: XmlAttributes, types: Mapping[str, int], waits: tuple[tuple[int, int], ...], published: bool
) -> _Step:
    name = attributes.text("type")
    op = types.get(name)
    if op is None:
        raise InvalidInput("unknown type of a step", name, f"known are {', '.join(_TYPES)}")
    return _Step(
        attributes.integer("s", least=0),
        op,
        attributes.buffer("srcbuf"),
        attributes.integer("srcoff", least=-1),
        attributes.buffer("dstbuf"),
        attributes.integer("dstoff", least=-1),
        attributes.integer("cnt", least=0),
        waits,
        published,
    )


def _program_of_rank(raw: _Rank, single_wait: bool) -> tuple[RankProgram, list[ProgramViolation]]:
    """Return what the elements of a rank mean, and the faults that instructions cannot express."""
    rank, findings = raw.id, []
    blocks = sorted(raw.blocks, key=lambda block: block.id)
    ids = [block.id for block in blocks]
    if len(set(ids)) < len(ids):
        duplicate = next(first for first, second in pairwise(ids) if first == second)
        raise InvalidInput(f"the ids of the blocks of rank {rank} must differ", duplicate, "keep one of them")
    if ids != list(range(len(ids))):
        message = f"ids must be 0 to {len(ids) - 1} without gaps, the last is {ids[-1]}"
        findings.append(ProgramViolation.at("block ids", message, rank))
    for block in blocks:
        if [step.number for step in block.steps] != list(range(len(block.steps))):
            message = "steps must be numbered 0, 1, 2 in file order"
            findings.append(ProgramViolation.at("step numbers", message, rank, block.id))
    waits = (_folded_waits if single_wait else _plain_waits)(rank, blocks, findings)
    items = [[step for step in block.steps if step.op != _NOP] for block in blocks]
    columns = columns_from(
        [(max(block.send, NO_PEER), max(block.recv, NO_PEER), block.channel) for block in blocks],
        [len(some) for some in items],
        [step[1:7] for some in items for step in some],
        waits,
    )
    return RankProgram(*raw.chunks, ColumnBlocks(columns)), findings


_Waits = list[list[tuple[int, int]]]
"""Block and instruction that each instruction of a rank waits for."""


def _plain_waits(rank: int, blocks: Sequence[_Block], findings: list[ProgramViolation]) -> _Waits:
    index_of = {block.id: index for index, block in enumerate(blocks)}
    for block in blocks:
        for step in block.steps:
            findings += [
                ProgramViolation.at(
                    "wait", f"waits for block {other}, which does not exist", rank, block.id, step.number
                )
                for other, _ in step.waits
                if other not in index_of
            ]
    return [
        [(index_of.get(other, other), number) for other, number in step.waits]
        for block in blocks
        for step in block.steps
    ]


def _folded_waits(rank: int, blocks: Sequence[_Block], findings: list[ProgramViolation]) -> _Waits:
    """Return the waits of each instruction with those of the `nop` steps before it.

    A wait ends when the block waited on publishes that step or a later one: a step that does not publish
    stands for the next one that does. Where there is none the waiter hangs, which is a finding.
    """
    index_of = {block.id: index for index, block in enumerate(blocks)}
    targets = [_publishing(block) for block in blocks]
    folded: _Waits = []
    for block in blocks:
        pending: list[tuple[int, int]] = []
        for step in block.steps:
            for other, number in step.waits:
                index = index_of.get(other)
                target = targets[index][number] if index is not None and 0 <= number < len(targets[index]) else None
                if target is None or index is None:
                    message = f"waits for step {number} of block {other}, which never publishes it or a later one"
                    findings.append(ProgramViolation.at("wait", message, rank, block.id, step.number))
                else:
                    pending.append((index, target))
            if not step.waits and (step.op == _NOP or pending):
                what = "a nop must carry a wait" if step.op == _NOP else "a step after a nop must carry a wait itself"
                findings.append(ProgramViolation.at("nop", what, rank, block.id, step.number))
            if step.op != _NOP:
                folded.append(pending)
                pending = []
    return folded


def _publishing(block: _Block) -> list[int | None]:
    """Return, for each step of `block`, the instruction whose end a wait on it needs; None where none publishes."""
    result: list[int | None] = [None] * len(block.steps)
    number = sum(step.op != _NOP for step in block.steps)
    publishing = None
    for index in range(len(block.steps) - 1, -1, -1):
        if block.steps[index].op != _NOP:
            number -= 1
            publishing = number if block.steps[index].published else publishing
        result[index] = publishing
    return result
