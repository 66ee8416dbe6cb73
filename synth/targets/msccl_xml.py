"""The XML of the MSCCL runtime (microsoft/msccl): an NCCL that executes custom algorithms on GPUs.

The file is read by a character scanner, not by an XML parser, and each rank checks its own part only, so that a
fault may hang the job: the writer keeps to the narrow form that the scanner takes, and the reader here reports
whatever the runtime would refuse or misread. A step carries one wait; further ones stand on `nop` steps before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from chorale.synth.collective import CollectiveName
from chorale.synth.errors import InvalidInput
from chorale.synth.programs.check_structure import require_valid_structure
from chorale.synth.programs.limits import TargetLimits
from chorale.synth.programs.message_sizes import MSCCL_BUFFERS
from chorale.synth.programs.program import Instruction, Program, ProgramViolation, RankProgram
from chorale.synth.targets.base import DocumentBody, Lifted, RawBlock, RawStep, XmlAttributes
from chorale.synth.targets.msccl_document import fold_waits, read_msccl_step
from chorale.synth.targets.xml_assembly import ProgramHeader, program_of, read_collective
from chorale.synth.targets.xml_document import Attribute, document_parts

LONGEST_NAME = 63
SPECIAL_NAME = "2D"  # makes the runtime execute a built-in alltoall instead of the file
MIN_THREADS = 64  # any other number than powers of two from here on can make a call fail
LARGEST_BYTES = 2**31 - 1  # the runtime counts elements (bytes for allgather) in 32 bits
DEFAULT_MAX_BYTES = 2**27 - 1  # where a file gives no upper bound
MAX_SCRATCH_BYTES = 2**34  # allocated when a communicator is made, for a vector of the largest size

LIMITS = TargetLimits(
    ranks=1024,
    channels=32,
    threadblocks=216,
    resident_threadblocks=108,
    waitable_threadblocks=128,
    blocks_per_direction=32,
    steps=256,
    waits=256,
    single_wait=True,
    count=71,
    offset=32767,
    elements_per_rank=4096,
    elements=2**24,
    fused_reductions=15,
    largest_max_bytes=LARGEST_BYTES,
    one_sided_operations=None,
    alltoall_in_place=False,
    alignment_bytes=1,
    message_buffers=MSCCL_BUFFERS,
)


@dataclass(frozen=True, slots=True)
class MscclXml:
    """Target `msccl-xml`. Limits: 108 blocks is what the smallest current data-centre GPU holds at once."""

    name: str = "msccl-xml"
    limits: TargetLimits = LIMITS

    def recognises(self, root: str, attributes: Mapping[str, str]) -> bool:
        """Any `<algo>` without the attribute `format`, which only oneccl-xml has."""
        return root == "algo" and "format" not in attributes

    def emit(self, program: Program) -> str:
        """Return the text of `program`. `max_bytes` is written one higher: the runtime's bound is exclusive."""
        require_valid_structure(program, self.limits, self.name)
        return b"".join(self.parts(program, program.ranks)).decode("ascii")

    def parts(self, head: Program, ranks: Iterable[RankProgram]) -> Iterator[bytes]:
        """Return the text rank by rank; `head` is the program with empty ranks."""
        return document_parts(_root(head), ranks, self.limits.single_wait)

    def read_step(self, attributes: XmlAttributes) -> RawStep:
        """Return the step that `attributes` describe."""
        return read_msccl_step(attributes)

    def instructions(
        self, rank: int, blocks: Sequence[RawBlock], findings: list[ProgramViolation]
    ) -> list[tuple[Instruction, ...]]:
        """Return the instructions of each block, with the waits of the `nop` steps before them."""
        return fold_waits(rank, blocks, findings)

    def assemble(self, attributes: XmlAttributes, body: DocumentBody) -> Lifted[Program]:
        """Return the program of `body` and everything in its text that the runtime would refuse or misread."""
        above = attributes.integer("maxBytes", DEFAULT_MAX_BYTES + 1, least=1)
        header = ProgramHeader(
            target=self.name,
            collective=read_collective(attributes, {}),
            min_bytes=attributes.integer("minBytes", 0, least=0),
            max_bytes=0 if above > LARGEST_BYTES else above - 1,
        )
        program = program_of(attributes, header, self.limits, body.ranks)
        findings = (*body.text_findings, *_header_findings(attributes, program, above), *body.findings)
        return Lifted(program, findings, notices=body.notices)

    def stated_max_bytes(self, max_bytes: int) -> int:
        """Return one more: the runtime's bound is exclusive."""
        return max_bytes + 1


_KNOWN = frozenset(CollectiveName)


def _header_findings(attributes: XmlAttributes, program: Program, above: int) -> Iterator[ProgramViolation]:
    if attributes.text("coll") not in _KNOWN:
        yield ProgramViolation.at("header", f'the loader knows no coll="{attributes.text("coll")}"')
    if "name" not in attributes:
        yield ProgramViolation.at("header", f"{attributes.location} must have name, which the loader requires")
    if program.name == SPECIAL_NAME and program.collective.name == CollectiveName.ALLTOALL:
        yield ProgramViolation.at("header", f"the name {SPECIAL_NAME} makes the runtime execute an alltoall of its own")
    if program.in_place and program.collective.name == CollectiveName.ALLTOALL:
        yield ProgramViolation.at("never used", "the runtime refuses calls of alltoall in place")
    if program.min_bytes >= above:
        yield ProgramViolation.at("never used", f"minBytes {program.min_bytes} is not below maxBytes {above}")
    threads = attributes.integer("nthreads", MIN_THREADS, least=0)
    if threads < MIN_THREADS or threads & (threads - 1):
        yield ProgramViolation.at("threads", f"nthreads {threads} must be a power of two, at least {MIN_THREADS}")
    chunks = max(rank.scratch_chunks for rank in program.ranks)
    size_bytes = chunks * above // program.chunks
    if size_bytes > MAX_SCRATCH_BYTES:
        message = f"maxBytes {above} makes {size_bytes} bytes of scratch, more than {MAX_SCRATCH_BYTES}"
        yield ProgramViolation.at("scratch", message)


def _root(program: Program) -> dict[str, Attribute]:
    if len(program.name) > LONGEST_NAME or program.name == SPECIAL_NAME:
        rule = f"the name of a program must have at most {LONGEST_NAME} characters and not be {SPECIAL_NAME}"
        raise InvalidInput(rule, program.name, "choose another name")
    root: dict[str, Attribute] = {
        "name": program.name,
        "proto": program.protocol,
        "nchannels": program.channels,
        "nchunksperloop": program.chunks,
        "ngpus": len(program.ranks),
        "coll": program.collective.name.value,
        "inplace": int(program.in_place),
        "outofplace": int(not program.in_place),
        "minBytes": program.min_bytes,
        "maxBytes": (program.max_bytes or LARGEST_BYTES) + 1,
    }
    # The runtime ignores what it does not know; these two are for reading the file back.
    if program.collective.root is not None:
        root["root"] = program.collective.root
    if program.origin:
        root["origin"] = program.origin
    return root
