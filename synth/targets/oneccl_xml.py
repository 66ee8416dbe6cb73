"""Our own XML, which the interpreters on CPUs run: MSCCL's elements, several waits on a step, wide limits.

Described in docs/reference/programs.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from chorale.synth.errors import InvalidInput
from chorale.synth.programs.check_structure import require_valid_structure
from chorale.synth.programs.limits import TargetLimits
from chorale.synth.programs.program import Instruction, Program, ProgramViolation, RankProgram, Wait
from chorale.synth.programs.switch_processes import collective_of_ranks, switch_collective
from chorale.synth.targets.base import DocumentBody, Lifted, RawBlock, RawStep, XmlAttributes
from chorale.synth.targets.xml_assembly import ProgramHeader, instruction_of, program_of, read_collective
from chorale.synth.targets.xml_document import Attribute, document_parts

FORMAT = "oneccl-xml/1"
_WAIT = re.compile(r"[0-9]{1,7}:[0-9]{1,7}\Z")
_NODE = re.compile(r"[0-9]{1,7}\Z")
_NUMBERS = frozenset(["nchannels", "nchunksperloop", "ngpus", "minBytes", "maxBytes"])
ROOT_ATTRIBUTES = _NUMBERS | {"format", "name", "proto", "coll", "root", "inplace", "origin", "switches"}
STEP_ATTRIBUTES = frozenset(["s", "type", "srcbuf", "srcoff", "dstbuf", "dstoff", "cnt", "waits"])

LIMITS = TargetLimits(
    ranks=4096,
    channels=1024,
    threadblocks=65536,
    resident_threadblocks=65536,
    waitable_threadblocks=65536,
    blocks_per_direction=65536,
    steps=1_000_000,
    waits=1_000_000,
    single_wait=False,
    count=4096,
    offset=2**24,
    elements_per_rank=1_000_000,
    elements=2**24,
    fused_reductions=None,
    largest_max_bytes=None,
    one_sided_operations=None,
    alltoall_in_place=True,
    alignment_bytes=1,
    message_buffers=None,
)


@dataclass(frozen=True, slots=True)
class OneCclXml:
    """Target `oneccl-xml`."""

    name: str = "oneccl-xml"
    limits: TargetLimits = LIMITS

    def recognises(self, root: str, attributes: Mapping[str, str]) -> bool:
        """An `<algo>` whose `format` is this version; other versions are refused."""
        return root == "algo" and attributes.get("format") == FORMAT

    def emit(self, program: Program) -> str:
        """Return the text of `program`."""
        require_valid_structure(program, self.limits, self.name)
        return b"".join(self.parts(program, program.ranks)).decode("ascii")

    def parts(self, head: Program, ranks: Iterable[RankProgram]) -> Iterator[bytes]:
        """Return the text rank by rank; `head` is the program with empty ranks."""
        return document_parts(_root(head), ranks, self.limits.single_wait)

    def read_step(self, attributes: XmlAttributes) -> RawStep:
        """Return the step that `attributes` describe; `waits` is optional, every other attribute required."""
        _refuse_unknown(attributes, STEP_ATTRIBUTES)
        return RawStep(
            number=attributes.integer("s", least=0),
            type=attributes.text("type"),
            src=attributes.buffer_ref("srcbuf", "srcoff"),
            dst=attributes.buffer_ref("dstbuf", "dstoff"),
            count=attributes.integer("cnt", least=0),
            waits=_read_waits(attributes),
            published=True,
        )

    def instructions(
        self, rank: int, blocks: Sequence[RawBlock], findings: list[ProgramViolation]
    ) -> list[tuple[Instruction, ...]]:
        """Return the instructions of each block."""
        return _instructions(rank, blocks, findings)

    def assemble(self, attributes: XmlAttributes, body: DocumentBody) -> Lifted[Program]:
        """Return the program of `body`."""
        _refuse_unknown(attributes, ROOT_ATTRIBUTES)
        if attributes.text("format") != FORMAT:
            raise InvalidInput("the format of a program must be one that is known", attributes.text("format"), FORMAT)
        switches = _read_switches(attributes)
        collective = read_collective(attributes.for_collective(None) if switches else attributes, {})
        if switches:
            collective = switch_collective(collective, len(body.ranks) - len(switches), len(switches))
        header = ProgramHeader(
            target=self.name,
            collective=collective,
            min_bytes=attributes.integer("minBytes", 0, least=0),
            max_bytes=attributes.integer("maxBytes", 0, least=0),
        )
        program = program_of(attributes, header, self.limits, body.ranks)
        return Lifted(replace(program, switches=switches), body.findings)

    def stated_max_bytes(self, max_bytes: int) -> int:
        """Return the same: the bound is inclusive."""
        return max_bytes


def _root(program: Program) -> dict[str, Attribute]:
    root: dict[str, Attribute] = {
        "format": FORMAT,
        "name": program.name,
        "proto": program.protocol,
        "nchannels": program.channels,
        "nchunksperloop": program.chunks,
        "ngpus": len(program.ranks),
        "coll": collective_of_ranks(program).name.value,
    }
    if program.switches:
        root["switches"] = " ".join(map(str, program.switches))
    if program.collective.root is not None:
        root["root"] = program.collective.root
    root |= {"inplace": int(program.in_place), "minBytes": program.min_bytes, "maxBytes": program.max_bytes}
    return root | {"origin": program.origin} if program.origin else root


def _read_switches(attributes: XmlAttributes) -> tuple[int, ...]:
    """Return the nodes of switches that act; their processes are the last of `ngpus`."""
    text = attributes.text("switches", "")
    if not text:
        return ()
    words = text.split(" ")
    ranks = attributes.integer("ngpus", least=1)
    if not all(_NODE.match(word) for word in words) or len(words) >= ranks:
        rule = f"switches of {attributes.location} must be fewer nodes than ngpus, with one space between them"
        raise InvalidInput(rule, repr(text), 'write it as in "8 9"')
    return tuple(map(int, words))


def _read_waits(attributes: XmlAttributes) -> tuple[Wait, ...]:
    text = attributes.text("waits", "")
    if not text:
        return ()
    words = text.split(" ")
    if not all(_WAIT.match(word) for word in words):
        rule = f"waits of {attributes.location} must be block:step pairs with one space between them"
        raise InvalidInput(rule, repr(text), 'write it as in "0:3 2:1"')
    return tuple(Wait(*map(int, word.split(":"))) for word in words)


def _refuse_unknown(attributes: XmlAttributes, known: frozenset[str]) -> None:
    unknown = sorted(attributes.names() - known)
    if unknown:
        raise InvalidInput(f"{attributes.location} must have known attributes only", unknown[0], "remove it")


def _instructions(
    rank: int, blocks: Sequence[RawBlock], findings: list[ProgramViolation]
) -> list[tuple[Instruction, ...]]:
    index_of = {block.id: index for index, block in enumerate(blocks)}
    for block in blocks:
        for step in block.steps:
            findings.extend(
                ProgramViolation.at(
                    "wait", f"waits for block {wait.block}, which does not exist", rank, block.id, step.number
                )
                for wait in step.waits
                if wait.block not in index_of
            )
    return [
        tuple(
            instruction_of(step, tuple(Wait(index_of.get(w.block, w.block), w.step) for w in step.waits))
            for step in block.steps
        )
        for block in blocks
    ]
