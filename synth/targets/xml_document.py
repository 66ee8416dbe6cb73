"""Reads program documents from untrusted XML in bounded memory (no entities, no DTD, sizes checked first); writes them.

Written are one element per line and one space between attributes, so that equal programs have equal bytes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from xml.parsers import expat

from chorale.synth.errors import InvalidInput
from chorale.synth.programs.columns import columns_of
from chorale.synth.programs.program import ProgramViolation, RankProgram
from chorale.synth.targets.base import RawBlock, RawProgram, RawRank, XmlAttributes, XmlTarget
from chorale.synth.targets.step_text import MAX_VALUE_CHARACTERS, block_lines

MAX_TEXT_BYTES = 2**30
"""The largest program that is read at all, as columns."""
MAX_PARSED_BYTES = 256 * 2**20
MAX_ELEMENTS = 1_000_000
MAX_ATTRIBUTES = 16
MAX_TAG_BYTES = 2**21  # more than 16 such values, and of comments
SLICE_BYTES = 2**16

MAX_DOCUMENTS = 64
MAX_KINDS_SKIPPED = 20

_SKIPPED = "skipped"
_CHILD_OF = {"": "algo", "algo": "gpu", "gpu": "tb", "tb": "step", "step": "", _SKIPPED: ""}
_FURTHER_DOCUMENT = expat.errors.codes[expat.errors.XML_ERROR_JUNK_AFTER_DOC_ELEMENT]


TargetChooser = Callable[[Mapping[str, str]], XmlTarget]
"""Returns the target of a document from the attributes of its root; InvalidInput for none."""


def read_document(
    text: bytes, choose: TargetChooser, most_elements: int = MAX_ELEMENTS, most_bytes: int = MAX_PARSED_BYTES
) -> tuple[XmlTarget, RawProgram]:
    """Return the target of `text` and its contents; InvalidInput for anything that is not such a document.

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
    return _first_of(builders)


def _first_of(builders: Sequence[_Builder]) -> tuple[XmlTarget, RawProgram]:
    """Return the first program that the documents of a file hold."""
    read = [result for builder in builders if (result := builder.result()) is not None]
    if not read:
        raise InvalidInput("a program must have a root element <algo>", "none", "write the file again")
    target, program = read[0]
    if len(builders) > 1:
        if not target.limits.single_wait:
            raise InvalidInput("a program must be one document", f"{len(builders)} in a row", "keep one")
        message = f"the file holds {len(builders)} documents in a row, of which the first <algo> is taken"
        program.notices.append(ProgramViolation.at("documents", message))
    return target, program


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
    """Receives the parser's events for one document and builds the raw program."""

    def __init__(self, choose: TargetChooser, most_elements: int, elements_before: int) -> None:
        self.parser = expat.ParserCreate("utf-8")
        self.parser.XmlDeclHandler = _refuse_encodings
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._characters
        self.parser.StartDoctypeDeclHandler = _refuse_doctype
        self._choose = choose
        self._most_elements = most_elements
        self._elements_before = elements_before
        self._target: XmlTarget | None = None
        self._program: RawProgram | None = None
        self._path = [""]
        self._skipped: Counter[tuple[str, str]] = Counter()
        self.elements = 0

    def result(self) -> tuple[XmlTarget, RawProgram] | None:
        """Return what was read, None for a document of something else."""
        if self._target is None or self._program is None:
            return None
        for (element, parent), count in sorted(self._skipped.items()):
            message = f"readers pass over <{element}> under <{parent}> ({count} of them)"
            self._program.notices.append(ProgramViolation.at("skipped", message))
        return self._target, self._program

    def _start(self, element: str, values: dict[str, str]) -> None:
        self.elements += 1
        line = self.parser.CurrentLineNumber
        if self._elements_before + self.elements > self._most_elements:
            rule = f"a program must have at most {self._most_elements} elements"
            raise InvalidInput(rule, f"more in line {line}", "split the collective")
        _check_size(element, line, values)
        parent = self._path[-1]
        expected = _CHILD_OF[parent]
        if element != expected:
            self._skip(element, parent, expected, line)
        self._path.append(element if element == expected else _SKIPPED)
        if element == expected:
            getattr(self, f"_start_{element}")(XmlAttributes(element, line, values), values)

    def _skip(self, element: str, parent: str, expected: str, line: int) -> None:
        """Note an element that the loaders pass over; refuse it where they crash, or in oneccl-xml."""
        if parent == "step" or (self._target is not None and not self._target.limits.single_wait):
            rule = f"line {line} must hold <{expected}>" if parent != "step" else "a step must be empty"
            raise InvalidInput(rule, f"<{element[:40]}>", "nest algo > gpu > tb > step")
        if parent not in ("", _SKIPPED) and len(self._skipped) < MAX_KINDS_SKIPPED:
            self._skipped[element[:40], parent] += 1

    def _end(self, _element: str) -> None:
        self._path.pop()

    def _characters(self, text: str) -> None:
        if not text.isspace():
            line = self.parser.CurrentLineNumber
            raise InvalidInput("elements must hold no text", f"{text[:40]!r} in line {line}", "remove it")

    def _start_algo(self, attributes: XmlAttributes, values: dict[str, str]) -> None:
        self._target = self._choose(values)
        self._program = RawProgram(attributes)

    def _start_gpu(self, attributes: XmlAttributes, _values: dict[str, str]) -> None:
        inputs, outputs, scratch = (
            max(0, attributes.integer(name, least=-1)) for name in ("i_chunks", "o_chunks", "s_chunks")
        )
        rank = RawRank(attributes.integer("id", least=0), inputs, outputs, scratch)
        self._ranks.append(rank)

    def _start_tb(self, attributes: XmlAttributes, _values: dict[str, str]) -> None:
        send, recv, channel = (attributes.integer(name, least=-1) for name in ("send", "recv", "chan"))
        self._ranks[-1].blocks.append(RawBlock(attributes.integer("id", least=0), send, recv, channel))

    def _start_step(self, attributes: XmlAttributes, _values: dict[str, str]) -> None:
        if self._target is not None:
            self._ranks[-1].blocks[-1].steps.append(self._target.read_step(attributes))

    @property
    def _ranks(self) -> list[RawRank]:
        return self._program.ranks if self._program is not None else []


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


LONGEST_VALUE = 255  # of all but steps; what MSCCL's reader keeps
_PLAIN = re.compile(r"[ !#-%(-;=?-~]*")  # printable, without < > & and quotes

Attribute = str | int


def document_parts(root: Mapping[str, Attribute], ranks: Iterable[RankProgram], single_wait: bool) -> Iterator[bytes]:
    """Return the text of a program part by part: the root with its attributes, each rank, the end.

    `single_wait`: whether a step carries one wait at most. No more than one rank is held at a time.
    """
    yield _element("algo", root) + b"\n"
    for number, rank in enumerate(ranks):
        yield rank_text(number, rank, single_wait)
    yield b"</algo>\n"


def rank_text(rank: int, program: RankProgram, single_wait: bool) -> bytes:
    """Return the lines of rank number `rank`. O(instructions + waits)."""
    chunks = (program.input_chunks, program.output_chunks, program.scratch_chunks)
    head = b'  <gpu id="%d" i_chunks="%d" o_chunks="%d" s_chunks="%d">\n' % (rank, *chunks)
    return block_lines(columns_of(program), single_wait, head, b"  </gpu>\n")


def _element(name: str, attributes: Mapping[str, Attribute]) -> bytes:
    words = [f'{key}="{_plain(key, value)}"' for key, value in attributes.items()]
    return f"<{' '.join([name, *words])}>".encode()


def _plain(key: str, value: Attribute) -> str:
    if isinstance(value, int):
        return str(value)
    if len(value) > LONGEST_VALUE or _PLAIN.fullmatch(value) is None:
        rule = f"{key} must be at most {LONGEST_VALUE} printable ASCII characters without < > & and quotes"
        raise InvalidInput(rule, value, "choose a plainer value")
    return value
