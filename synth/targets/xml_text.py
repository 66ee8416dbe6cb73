"""Writes program documents, and reads them from untrusted XML. Equal programs give equal bytes.

Elements are nested as algo > gpu > tb > step. In the MSCCL form, a step element has at most one wait, and additional
waits are written as `nop` steps before it. In the Chorale form (oneccl-xml), a step element has all waits of the step.
The reader rejects entities and DTDs and checks sizes before parsing. To save memory, it converts each rank to columns
as soon as the rank's element ends.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple
from xml.parsers import expat

import numpy as np

from chorale.synth.errors import InvalidInput
from chorale.synth.programs import program
from chorale.synth.programs.check_structure import TargetLimits

MAX_VALUE_CHARACTERS = 65536
LONGEST_VALUE = 255  # limit for all values outside steps; the MSCCL reader truncates longer values
NOP = "nop"
_NOP_OPERANDS = f'" type="{NOP}" srcbuf="i" srcoff="-1" dstbuf="i" dstoff="-1" cnt="0'
_PLAIN = re.compile(r"[ !#-%(-;=?-~]*")  # printable, without < > & and quotes

Attribute = str | int
LimitsChooser = Callable[[Mapping[str, str]], TargetLimits]
"""Function that determines a document's target from its root attributes and returns the target's limits."""
_Waits = list[list[tuple[int, int]]]
"""For each instruction of a rank, the (block, instruction) pairs that it waits for."""


def document_text(root: Mapping[str, Attribute], ranks: Iterable[program.RankProgram], single_wait: bool) -> str:
    """Return a program as XML text. O(instructions + waits).

    Args:
        root: The root element's attributes.
        ranks: The program of each rank.
        single_wait: Whether a step element may have at most one wait (MSCCL form).

    Raises:
        InvalidInput: A value is too long for readers, or has characters that they do not accept.
    """
    for key, value in root.items():
        if isinstance(value, str) and (len(value) > LONGEST_VALUE or _PLAIN.fullmatch(value) is None):
            rule = f"{key} must be at most {LONGEST_VALUE} printable ASCII characters without < > & and quotes"
            raise InvalidInput(rule, value, "choose a plainer value")
    lines = [" ".join(["<algo", *(f'{key}="{value}"' for key, value in root.items())]) + ">"]
    for number, rank in enumerate(ranks):
        columns = rank.columns
        chunks = f'i_chunks="{rank.input_chunks}" o_chunks="{rank.output_chunks}" s_chunks="{rank.scratch_chunks}"'
        lines.append(f'  <gpu id="{number}" {chunks}>')
        steps = _single_steps(columns) if single_wait else _joined_steps(columns)
        ends = zip(columns.send_peer.tolist(), columns.recv_peer.tolist(), columns.channel.tolist(), strict=True)
        for block, (send, recv, channel) in enumerate(ends):
            lines.append(f'    <tb id="{block}" send="{send}" recv="{recv}" chan="{channel}">')
            lines += next(steps)
            lines.append("    </tb>")
        lines.append("  </gpu>")
    return "\n".join([*lines, "</algo>\n"])


def _operands(columns: program.RankColumns) -> list[str]:
    """Return the XML attributes from `type` to `cnt` of each instruction, as text."""
    sources = [f'" type="{op.value}" srcbuf="{buffer}" srcoff="' for op in program.OPS for buffer in program.BUFFERS]
    targets = [f'" dstbuf="{buffer}" dstoff="' for buffer in program.BUFFERS]
    rows = zip(
        (columns.op * len(program.BUFFERS) + columns.src_buffer).tolist(),
        columns.src_offset.tolist(),
        columns.dst_buffer.tolist(),
        columns.dst_offset.tolist(),
        columns.count.tolist(),
        strict=True,
    )
    return [f'{sources[kind]}{src}{targets[into]}{dst}" cnt="{count}' for kind, src, into, dst, count in rows]


def _joined_steps(columns: program.RankColumns) -> Iterator[list[str]]:
    """Yield the step elements of each thread block, in the Chorale form: each element has all waits of the step."""
    operands, bounds = _operands(columns), columns.first_wait.tolist()
    pairs = zip(columns.wait_block.tolist(), columns.wait_step.tolist(), strict=True)
    waits = [f"{block}:{step}" for block, step in pairs]
    texts = [" ".join(waits[low:high]) for low, high in pairwise(bounds)]
    longest = max(map(len, texts), default=0)
    if longest > MAX_VALUE_CHARACTERS:
        rule = f"waits must have at most {MAX_VALUE_CHARACTERS} characters"
        raise InvalidInput(rule, longest, "lower it with more channels, or fewer chunks")
    waiting = [f'" waits="{text}' if text else "" for text in texts]
    for begin, end in pairwise(columns.first.tolist()):
        yield [f'      <step s="{item - begin}{operands[item]}{waiting[item]}"/>' for item in range(begin, end)]


def _single_steps(columns: program.RankColumns) -> Iterator[list[str]]:
    """Yield the step elements of each thread block, in the MSCCL form: each additional wait becomes a `nop` step."""
    operands, bounds = _operands(columns), columns.first_wait.tolist()
    rows = program.ends_of(np.maximum(columns.waits, 1))  # number of steps written before each instruction
    waited = columns.first[columns.wait_block] + columns.wait_step
    published = np.zeros(len(operands), dtype=np.int64)
    published[waited] = 1
    steps = rows[waited + 1] - 1 - rows[columns.first[columns.wait_block]]
    waits = [f'{b}" deps="{s}' for b, s in zip(columns.wait_block.tolist(), steps.tolist(), strict=True)]
    is_awaited, row = published.tolist(), rows.tolist()
    for begin, end in pairwise(columns.first.tolist()):
        lines: list[str] = []
        for item in range(begin, end):
            carried = waits[bounds[item] : bounds[item + 1]] or ['-1" deps="-1']
            number = row[item] - row[begin]
            for wait in carried[:-1]:
                lines.append(f'      <step s="{number}{_NOP_OPERANDS}" depid="{wait}" hasdep="0"/>')
                number += 1
            step = f'{number}{operands[item]}" depid="{carried[-1]}" hasdep="{is_awaited[item]}'
            lines.append(f'      <step s="{step}"/>')
        yield lines


MAX_TEXT_BYTES = 2**30
MAX_ELEMENTS = 2**24
"""Maximum number of elements in a document. Each element takes about 100 bytes of memory."""
MAX_ATTRIBUTES = 16
MAX_TAG_BYTES = 2**21  # limit for tags and comments; 16 values of maximum length fit
SLICE_BYTES = 2**16
MAX_DOCUMENTS = 64
MAX_KINDS_SKIPPED = 20
LARGEST_INTEGER = 2**63 - 1

_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,18})\Z")
_WAIT = re.compile(r"[0-9]{1,7}:[0-9]{1,7}\Z")
_TYPES = {op.value: number for number, op in enumerate(program.OPS)}
_NOP = len(program.OPS)
STEP_ATTRIBUTES = frozenset(["s", "type", "srcbuf", "srcoff", "dstbuf", "dstoff", "cnt", "waits"])
"""Attributes that a step element may have in the Chorale form."""
_SKIPPED = "skipped"
_CHILD_OF = {"": "algo", "algo": "gpu", "gpu": "tb", "tb": "step", "step": "", _SKIPPED: ""}
_FURTHER_DOCUMENT = expat.errors.codes[expat.errors.XML_ERROR_JUNK_AFTER_DOC_ELEMENT]
_KNOWN_NUMBERS: dict[str, int] = {str(number): number for number in range(-1, 2**14)}
"""Maps the texts of frequent numbers to their values, so that these numbers need no further checks."""


class XmlAttributes:
    """Reads and checks the attributes of one XML element. Errors name the element and its line."""

    __slots__ = ("_element", "_line", "_values")

    def __init__(self, element: str, line: int, values: Mapping[str, str]) -> None:
        self._element, self._line, self._values = element, line, values

    @property
    def location(self) -> str:
        return f"<{self._element}> in line {self._line}"

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def refuse_unknown(self, names: frozenset[str]) -> None:
        """Raise InvalidInput if the element has an attribute that is not in `names`."""
        for name in sorted(self._values.keys() - names):
            raise InvalidInput(f"{self.location} has the unknown attribute {{}}", name, "remove it")

    def text(self, name: str, default: str | None = None) -> str:
        value = self._values.get(name, default)
        if value is None:
            raise InvalidInput(f"{self.location} has no {name}", "", f'add {name}="..."')
        return value

    def integer(self, name: str, default: int | None = None, least: int = -LARGEST_INTEGER) -> int:
        """Return the value of attribute `name`: a decimal 64-bit integer, at least `least`."""
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
        """Return the index into BUFFERS of the buffer whose letter is the value of attribute `name`."""
        letter = self.text(name)
        if letter not in program.BUFFERS:
            raise InvalidInput(f"{name} of {self.location} must be i, o or s", repr(letter), "name one of the buffers")
        return program.BUFFERS.index(letter)


class DocumentBody(NamedTuple):
    """The contents of a program document below its root element.

    ranks:         the program of each rank
    findings:      faults in elements, which the program object cannot represent
    text_findings: violations of the MSCCL scanner's syntax rules; only for the MSCCL form
    notices:       elements that readers ignore
    """

    ranks: tuple[program.RankProgram, ...]
    findings: tuple[program.ProgramViolation, ...] = ()
    text_findings: tuple[program.ProgramViolation, ...] = ()
    notices: tuple[program.ProgramViolation, ...] = ()


class _Step(NamedTuple):
    """A step element of a document. `waits` contains (block, step) pairs.

    op:        index into OPS, or _NOP
    places:    operands and number of chunks, as in `RankColumns`
    published: whether the text allows other blocks to wait for this step
    """

    number: int
    op: int
    places: tuple[int, int, int, int, int]
    waits: tuple[tuple[int, int], ...]
    published: bool


class _Block(NamedTuple):
    id: int
    send: int
    recv: int
    channel: int
    steps: list[_Step]


class _Rank(NamedTuple):
    """A rank element of a document, with its thread blocks in file order. `chunks`: size of each buffer in chunks."""

    id: int
    chunks: tuple[int, int, int]
    blocks: list[_Block]


def read_document(text: bytes, choose: LimitsChooser) -> tuple[XmlAttributes, DocumentBody]:
    """Parse a program document and return its root attributes and contents. O(bytes) time.

    Like the MSCCL loaders, this function ignores unknown elements and reads only the first <algo> if a file has several
    documents. Both cases are reported as notices; in oneccl-xml they are errors. Memory use is proportional to the
    number of elements. Reading stops with InvalidInput as soon as a limit is exceeded.
    """
    if len(text) > MAX_TEXT_BYTES:
        raise InvalidInput(f"a program must be at most {MAX_TEXT_BYTES} bytes", len(text), "split the collective")
    builders: list[_Builder] = []
    first: int | None = 0
    while first is not None:
        if len(builders) == MAX_DOCUMENTS:
            raise InvalidInput(f"a file must have at most {MAX_DOCUMENTS} documents", "more", "split the file")
        builders.append(_Builder(choose, sum(builder.elements for builder in builders)))
        first = _parse(builders[-1], text, first)
    chosen = next((builder for builder in builders if builder.root is not None), None)
    if chosen is None or chosen.root is None or chosen.limits is None:
        raise InvalidInput("the program has no root element <algo>", "", "write the file again")
    notices = [
        program.ProgramViolation.at("skipped", f"readers ignore <{element}> under <{parent}> ({count} of them)")
        for (element, parent), count in sorted(chosen.skipped.items())
    ]
    if len(builders) > 1:
        if not chosen.limits.single_wait:
            raise InvalidInput("the file contains {}, one program is needed", f"{len(builders)} programs", "keep one")
        message = f"the file holds {len(builders)} documents in a row; only the first <algo> is read"
        notices.append(program.ProgramViolation.at("documents", message))
    return chosen.root, chosen.body()._replace(notices=tuple(notices))


def _parse(builder: _Builder, text: bytes, first: int) -> int | None:
    """Parse the document that begins at byte `first`. Return the start of the next document in `text`, or None.

    The parser buffers a tag until its end. To limit memory use, the text is therefore passed to the parser in slices.
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
            raise InvalidInput("the program is not well-formed XML: {}", str(error), "write the file again") from None
        return first + int(parser.ErrorByteIndex)
    return None


class _Builder:
    """Builds a program document from parser events. `root` and `limits` are None if the document is not a program."""

    def __init__(self, choose: LimitsChooser, elements_before: int) -> None:
        self.parser = expat.ParserCreate("utf-8")
        self.parser.buffer_text = True
        self.parser.XmlDeclHandler = _refuse_encodings
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._characters
        self.parser.StartDoctypeDeclHandler = _refuse_doctype
        self._choose, self._elements_before = choose, elements_before
        self.root: XmlAttributes | None = None
        self.limits: TargetLimits | None = None
        self._single_wait = True
        self._rank = _Rank(0, (0, 0, 0), [])
        self._ranks: dict[int, tuple[program.RankProgram, list[program.ProgramViolation]]] = {}
        self._path = [""]
        self.skipped: Counter[tuple[str, str]] = Counter()
        self.elements = 0

    def body(self) -> DocumentBody:
        """Return what was read: the ranks in numerical order, and the faults that a Program cannot represent."""
        assert self.root is not None
        assert self.limits is not None
        count = rank_count(self.root, self.limits)
        for number in self._ranks:
            if number >= count:
                raise InvalidInput("the gpu id {} is too large", number, f"ngpus is {count}")
        ranks, findings = [], []
        for number in range(count):
            missing = program.ProgramViolation.at("missing rank", "the file has no gpu element for it", number)
            rank, faults = self._ranks.get(number, (program.RankProgram(0, 0, 0, ()), [missing]))
            ranks.append(rank)
            findings += faults
        return DocumentBody(tuple(ranks), tuple(findings))

    def _start(self, element: str, values: dict[str, str]) -> None:
        self.elements += 1
        line = self.parser.CurrentLineNumber
        if self._elements_before + self.elements > MAX_ELEMENTS:
            rule = f"a program must have at most {MAX_ELEMENTS} elements"
            raise InvalidInput(rule, f"more in line {line}", "split the collective")
        if len(values) > MAX_ATTRIBUTES:
            rule = f"<{element}> in line {line} must have at most {MAX_ATTRIBUTES} attributes"
            raise InvalidInput(rule, len(values), "readers drop what comes after; remove some")
        longest = max(map(len, values.values()), default=0)
        if longest > MAX_VALUE_CHARACTERS:
            rule = f"attribute values of <{element}> in line {line} must have at most {MAX_VALUE_CHARACTERS} characters"
            raise InvalidInput(rule, longest, "shorten the value")
        parent = self._path[-1]
        expected = _CHILD_OF[parent]
        if element != expected:
            if parent == "step" or (self.limits is not None and not self.limits.single_wait):
                rule = f"line {line} must hold <{expected}>" if parent != "step" else "a step must be empty"
                raise InvalidInput(rule, f"<{element[:40]}>", "nest algo > gpu > tb > step")
            if parent not in ("", _SKIPPED) and len(self.skipped) < MAX_KINDS_SKIPPED:
                self.skipped[element[:40], parent] += 1
            self._path.append(_SKIPPED)
            return
        self._path.append(element)
        attributes = XmlAttributes(element, line, values)
        if element == "step":
            self._rank.blocks[-1].steps.append(_step(attributes, self._single_wait))
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

    def _end(self, _element: str) -> None:
        if self._path.pop() != "gpu":
            return
        rank = self._rank
        if rank.id in self._ranks:
            raise InvalidInput("two gpu elements have the id {}", rank.id, "keep one of them")
        self._ranks[rank.id] = _program_of_rank(rank, self._single_wait)

    def _characters(self, text: str) -> None:
        if not text.isspace():
            line = self.parser.CurrentLineNumber
            raise InvalidInput("there is text between XML elements: {}", f"{text[:40]!r} in line {line}", "remove it")


def _refuse_encodings(_version: str, encoding: str | None, _standalone: int) -> None:
    if encoding is not None and encoding.lower() not in ("utf-8", "us-ascii"):
        raise InvalidInput("programs are XML in UTF-8, this one is in {}", encoding[:40], "write the file again")


def _refuse_doctype(name: str, *_rest: object) -> None:
    raise InvalidInput("the program has a document type declaration: {}", f"DOCTYPE {name[:40]}", "remove it")


def rank_count(attributes: XmlAttributes, limits: TargetLimits) -> int:
    """Return a document's number of ranks. Raises InvalidInput if it exceeds the target's limit."""
    count = attributes.integer("ngpus", least=1)
    if count > limits.ranks:
        raise InvalidInput(f"ngpus must be at most {limits.ranks}", count, "use fewer ranks")
    return count


def _step(attributes: XmlAttributes, single_wait: bool) -> _Step:
    """Parse a step element that has at most one wait (MSCCL form) or all its waits (Chorale form).

    Only the attribute `waits` is optional.
    """
    waits: tuple[tuple[int, int], ...]
    if single_wait:
        block, step = attributes.integer("depid", least=-1), attributes.integer("deps", least=-1)
        waits, published = ((block, step),) if block >= 0 else (), attributes.flag("hasdep")
    else:
        attributes.refuse_unknown(STEP_ATTRIBUTES)
        text = attributes.text("waits", "")
        words = text.split(" ") if text else []
        if not all(_WAIT.match(word) for word in words):
            rule = f"waits of {attributes.location} must be block:step pairs with one space between them"
            raise InvalidInput(rule, repr(text), 'write it as in "0:3 2:1"')
        pairs = (word.split(":") for word in words)
        waits, published = tuple((int(block), int(step)) for block, step in pairs), True
    name = attributes.text("type")
    op = _NOP if single_wait and name == NOP else _TYPES.get(name)
    if op is None:
        raise InvalidInput("unknown type of a step: {}", name, f"known are {', '.join(_TYPES)}")
    number = attributes.integer("s", least=0)
    source = attributes.buffer("srcbuf"), attributes.integer("srcoff", least=-1)
    target = attributes.buffer("dstbuf"), attributes.integer("dstoff", least=-1)
    return _Step(number, op, (*source, *target, attributes.integer("cnt", least=0)), waits, published)


def _program_of_rank(raw: _Rank, single_wait: bool) -> tuple[program.RankProgram, list[program.ProgramViolation]]:
    """Convert a rank's elements to its program. Also return faults that the program object cannot represent."""
    rank, findings = raw.id, []
    blocks = sorted(raw.blocks, key=lambda block: block.id)
    ids = [block.id for block in blocks]
    if len(set(ids)) < len(ids):
        duplicate = next(first for first, second in pairwise(ids) if first == second)
        raise InvalidInput(f"two blocks of rank {rank} have the id {{}}", duplicate, "keep one of them")
    if ids != list(range(len(ids))):
        message = f"ids must be 0 to {len(ids) - 1} without gaps, the last is {ids[-1]}"
        findings.append(program.ProgramViolation.at("block ids", message, rank))
    for block in blocks:
        if [step.number for step in block.steps] != list(range(len(block.steps))):
            message = "steps must be numbered 0, 1, 2 in file order"
            findings.append(program.ProgramViolation.at("step numbers", message, rank, block.id))
    waits = (_folded_waits if single_wait else _plain_waits)(rank, blocks, findings)
    items = [[(step.op, *step.places) for step in block.steps if step.op != _NOP] for block in blocks]
    columns = program.columns_from(
        [(max(block.send, program.NO_PEER), max(block.recv, program.NO_PEER), block.channel) for block in blocks],
        [len(some) for some in items],
        [row for some in items for row in some],
        waits,
    )
    return program.RankProgram(*raw.chunks, program.ColumnBlocks(columns)), findings


def _plain_waits(rank: int, blocks: Sequence[_Block], findings: list[program.ProgramViolation]) -> _Waits:
    index_of = {block.id: index for index, block in enumerate(blocks)}
    for block in blocks:
        for step in block.steps:
            for other, _ in step.waits:
                if other not in index_of:
                    message = f"waits for block {other}, which does not exist"
                    findings.append(program.ProgramViolation.at("wait", message, rank, block.id, step.number))
    steps = (step for block in blocks for step in block.steps)
    return [[(index_of.get(other, other), number) for other, number in step.waits] for step in steps]


def _folded_waits(rank: int, blocks: Sequence[_Block], findings: list[program.ProgramViolation]) -> _Waits:
    """Return the waits of each instruction, including the waits of the `nop` steps before it.

    The text marks some steps as published. A wait for a step ends when that step or a later step of the block is
    published. If no such step exists, the waiting block hangs, which is reported as a finding.
    """
    index_of = {block.id: index for index, block in enumerate(blocks)}
    targets: list[list[int | None]] = []  # per step: when this instruction ends, waits for the step end
    for block in blocks:
        found: list[int | None] = []
        number, publishing = sum(step.op != _NOP for step in block.steps), None
        for step in reversed(block.steps):
            if step.op != _NOP:
                number -= 1
                publishing = number if step.published else publishing
            found.append(publishing)
        targets.append(found[::-1])
    folded: _Waits = []
    for block in blocks:
        pending: list[tuple[int, int]] = []
        for step in block.steps:
            for other, number in step.waits:
                index = index_of.get(other)
                target = targets[index][number] if index is not None and 0 <= number < len(targets[index]) else None
                if target is None or index is None:
                    message = f"waits for step {number} of block {other}, which never publishes it or a later one"
                    findings.append(program.ProgramViolation.at("wait", message, rank, block.id, step.number))
                else:
                    pending.append((index, target))
            if not step.waits and (step.op == _NOP or pending):
                what = "a nop must have a wait" if step.op == _NOP else "a step after a nop must have a wait itself"
                findings.append(program.ProgramViolation.at("nop", what, rank, block.id, step.number))
            if step.op != _NOP:
                folded.append(pending)
                pending = []
    return folded
