"""The XML of the MSCCL executor for NCCL (Azure/msccl-executor-nccl), the successor of the MSCCL runtime.

Scanner, steps and meaning are those of `chorale.synth.targets.msccl_xml`. The header differs: the placement is two
flags, both bounds of the size are required and inclusive, reduce-scatter is one word, and the default build takes 64
steps of a block. A file with a fault makes the creation of every communicator of its size fail.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

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

REDUCE_SCATTER = "reducescatter"
_REQUIRED = ("outofplace", "minBytes", "maxBytes")

LIMITS = TargetLimits(
    ranks=1024,
    channels=32,
    threadblocks=1024,
    resident_threadblocks=108,
    waitable_threadblocks=128,
    blocks_per_direction=32,
    steps=64,
    waits=64,
    single_wait=True,
    count=71,
    offset=32767,
    elements_per_rank=4096,
    elements=2**24,
    fused_reductions=15,
    largest_max_bytes=None,
    one_sided_operations=None,
    alltoall_in_place=True,
    alignment_bytes=1,
    message_buffers=MSCCL_BUFFERS,
)


@dataclass(frozen=True, slots=True)
class MscclExecutorXml:
    """Target `msccl-executor-xml`. 64 steps are the default of the build option that sets them."""

    name: str = "msccl-executor-xml"
    limits: TargetLimits = LIMITS

    def recognises(self, root: str, attributes: Mapping[str, str]) -> bool:
        """Our own mark, or what only this runtime takes: its word for reduce-scatter, both placements, no bound.

        A file that both runtimes take is read as one of the older runtime.
        """
        if root != "algo" or "format" in attributes:
            return False
        return (
            attributes.get("target") == self.name
            or attributes.get("coll") == REDUCE_SCATTER
            or attributes.get("maxBytes") == "0"
            or attributes.get("inplace") == attributes.get("outofplace") == "1"
        )

    def emit(self, program: Program) -> str:
        """Return the text of `program`."""
        require_valid_structure(program, self.limits, self.name)
        return b"".join(self.parts(program, program.ranks)).decode("ascii")

    def parts(self, head: Program, ranks: Iterable[RankProgram]) -> Iterator[bytes]:
        """Return the text rank by rank; `head` is the program with empty ranks."""
        return document_parts(_root(head, self.name), ranks, self.limits.single_wait)

    def read_step(self, attributes: XmlAttributes) -> RawStep:
        """Return the step that `attributes` describe."""
        return read_msccl_step(attributes)

    def instructions(
        self, rank: int, blocks: Sequence[RawBlock], findings: list[ProgramViolation]
    ) -> list[tuple[Instruction, ...]]:
        """Return the instructions of each block, with the waits of the `nop` steps before them."""
        return fold_waits(rank, blocks, findings)

    def assemble(self, attributes: XmlAttributes, body: DocumentBody) -> Lifted[Program]:
        """Return the program of `body`, in place if it serves both placements, and the faults of its text."""
        header = ProgramHeader(
            target=self.name,
            collective=read_collective(attributes, {REDUCE_SCATTER: CollectiveName.REDUCE_SCATTER.value}),
            min_bytes=attributes.integer("minBytes", 0, least=0),
            max_bytes=attributes.integer("maxBytes", 0, least=0),
        )
        program = program_of(attributes, header, self.limits, body.ranks)
        both = program.in_place and attributes.flag("outofplace", False)
        twin = replace(program, in_place=False) if both else None
        findings = (*body.text_findings, *_header_findings(attributes, header), *body.findings)
        return Lifted(program, findings, twin, body.notices)

    def stated_max_bytes(self, max_bytes: int) -> int:
        """Return the same: the bound is inclusive."""
        return max_bytes


_KNOWN = frozenset(
    f"allreduce allgather {REDUCE_SCATTER} alltoall alltoallv broadcast reduce send recv gather scatter".split()
)
"""What the loader takes for `coll`."""


def _header_findings(attributes: XmlAttributes, header: ProgramHeader) -> Iterator[ProgramViolation]:
    for name in _REQUIRED:
        if name not in attributes:
            yield ProgramViolation.at("header", f"{attributes.location} must have {name}, which the loader requires")
    if attributes.collective is not None and attributes.text("coll") not in _KNOWN:
        yield ProgramViolation.at("header", f'the loader knows no coll="{attributes.text("coll")}"')
    if attributes.text("coll") == CollectiveName.REDUCE_SCATTER:
        yield ProgramViolation.at("header", f'the loader knows coll="{REDUCE_SCATTER}" only')
    if not (attributes.flag("inplace") or attributes.flag("outofplace", False)):
        yield ProgramViolation.at("never used", "serves neither calls in place nor calls out of place")
    if header.max_bytes and header.max_bytes < header.min_bytes:
        yield ProgramViolation.at("never used", f"maxBytes {header.max_bytes} is below minBytes {header.min_bytes}")


def _root(program: Program, target: str) -> dict[str, Attribute]:
    name = program.collective.name
    if program.collective.custom is not None:
        rule = f"{target} must be for a collective by name: its loader knows no other"
        raise InvalidInput(rule, program.collective, "lower it with --target msccl-xml or mscclpp-json")
    root: dict[str, Attribute] = {
        "name": program.name,
        "proto": program.protocol,
        "nchannels": program.channels,
        "nchunksperloop": program.chunks,
        "ngpus": len(program.ranks),
        "coll": REDUCE_SCATTER if name == CollectiveName.REDUCE_SCATTER else name.value,
        "inplace": int(program.in_place),
        "outofplace": int(not program.in_place),
        "minBytes": program.min_bytes,
        "maxBytes": program.max_bytes,
        # The runtime ignores what it does not know; the rest is for reading the file back.
        "target": target,
    }
    if program.collective.root is not None:
        root["root"] = program.collective.root
    return root | {"origin": program.origin} if program.origin else root
