"""Defines the targets: the program formats of runtimes. A target writes programs as text and reads them back.

The XML targets are the formats of the MSCCL runtime and of its successor for NCCL, and Chorale's own format for CPUs.
"""

import re
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from chorale.synth.collective import STANDARD, Collective, CollectiveName, CustomCollective, custom_collective
from chorale.synth.errors import InvalidInput, name_among
from chorale.synth.programs.check_structure import MSCCL_BUFFERS, TargetLimits, require_valid_structure, written_steps
from chorale.synth.programs.memory import collective_of_ranks, switch_collective
from chorale.synth.programs.plans.plan import ExecutionPlan
from chorale.synth.programs.program import AnyProgram, Program, ProgramViolation, exact_protocol
from chorale.synth.targets.mscclpp_text import MscclppJson
from chorale.synth.targets.xml_text import Attribute, DocumentBody, XmlAttributes, document_text, rank_count

P_co = TypeVar("P_co", bound=AnyProgram, covariant=True)


@dataclass(frozen=True, slots=True)
class Lifted(Generic[P_co]):
    """A program that was read from text, and findings about the text.

    findings:     faults in the text, which the program object cannot represent
    out_of_place: the out-of-place version of the program, if the text is valid both in place and out of place
    notices:      parts of the text that runtimes silently ignore, although the author may have intended them
    """

    program: P_co
    findings: tuple[ProgramViolation, ...]
    out_of_place: Program | None = None
    notices: tuple[ProgramViolation, ...] = ()


class Target(Protocol):
    """A program format for one runtime: writes programs as text and reads them back.

    Requirements, checked by `tests/conformance/target_kit.py`: `emit` is deterministic, and reading its output always
    gives an equal program without findings. A target has no state.
    """

    @property
    def name(self) -> str: ...

    @property
    def limits(self) -> TargetLimits: ...

    def emit(self, program: Program) -> str:
        """Return `program` as text. Raises InvalidInput if the target cannot express it."""
        ...


@dataclass(frozen=True, slots=True)
class XmlTarget:
    """A target whose XML documents nest the elements algo > gpu > tb > step.

    A step element contains either at most one wait or all waits of the step (see `limits.single_wait`). Targets with
    the same kind of step elements can read the bodies of each other's documents.
    """

    name: str
    limits: TargetLimits

    def emit(self, program: Program) -> str:
        require_valid_structure(program, self.limits, self.name)
        return document_text(self.root(program), program.ranks, self.limits.single_wait)

    @abstractmethod
    def recognises(self, attributes: Mapping[str, str]) -> bool:
        """Return whether a document is for this target, given its root element's `attributes`."""

    @abstractmethod
    def root(self, program: Program) -> dict[str, Attribute]:
        """Return the root element's attributes for `program`."""

    @abstractmethod
    def assemble(
        self, attributes: XmlAttributes, body: DocumentBody, custom: CustomCollective | None
    ) -> Lifted[Program]:
        """Build the program from the root element's `attributes` and the `body`, following the rules of this target.

        custom: definition of the custom collective, if it was given separately from the file
        """

    def stated_max_bytes(self, max_bytes: int) -> int:
        """Return the value of the attribute `maxBytes` in a file for vectors of up to `max_bytes` bytes."""
        return max_bytes


def _read_collective(
    attributes: XmlAttributes, alias: Mapping[str, str], custom: CustomCollective | None
) -> Collective:
    """Return `custom` or, if it is None, the collective that the attribute `coll` names. The default root is rank 0."""
    if "coll" not in attributes:
        rule = f"{attributes.location} must say in coll which collective it is for; the runtimes refuse it without"
        raise InvalidInput(rule, "no coll", 'add coll="allreduce", or what the program does')
    text = attributes.text("coll")
    if custom is not None:
        return custom_collective(custom)
    name = next((each for each in STANDARD if each.value == alias.get(text, text)), None)
    if name is None:
        names = ", ".join(each.value for each in STANDARD)
        rule = f"a program for another collective than {names} needs a file that defines it"
        raise InvalidInput(rule, f'coll="{text}"', "add --collective-file FILE, or correct coll")
    collective = Collective(name)
    return Collective(name, attributes.integer("root", 0, least=0)) if collective.is_rooted else collective


def _program_of(
    target: XmlTarget,
    attributes: XmlAttributes,
    body: DocumentBody,
    collective: Collective,
    max_bytes: int | None = None,
) -> Program:
    """Build the program of an XML document according to the rules of `target`.

    max_bytes: maximum vector size in bytes; None to read it from the attribute `maxBytes`
    """
    rank_count(attributes, target.limits)
    return Program(
        name=attributes.text("name", ""),
        target=target.name,
        collective=collective,
        chunks=attributes.integer("nchunksperloop", least=1),
        in_place=attributes.flag("inplace"),
        protocol=exact_protocol(attributes.text("proto")),
        channels=attributes.integer("nchannels", least=1),
        ranks=body.ranks,
        min_bytes=attributes.integer("minBytes", 0, least=0),
        max_bytes=attributes.integer("maxBytes", 0, least=0) if max_bytes is None else max_bytes,
        origin=attributes.text("origin", ""),
    )


def _root(program: Program, **collective: Attribute) -> dict[str, Attribute]:
    """Return the root element's attributes: first those that all programs have, then `collective`."""
    root: dict[str, Attribute] = {
        "name": program.name,
        "proto": program.protocol,
        "nchannels": program.channels,
        "nchunksperloop": program.chunks,
        "ngpus": len(program.ranks),
    }
    return root | collective


FORMAT = "oneccl-xml/1"
_NODE = re.compile(r"[0-9]{1,7}\Z")
_NUMBERS = frozenset(["nchannels", "nchunksperloop", "ngpus", "minBytes", "maxBytes"])
ROOT_ATTRIBUTES = _NUMBERS | {"format", "name", "proto", "coll", "root", "inplace", "origin", "switches"}

ONECCL_LIMITS = TargetLimits(
    ranks=4096,
    channels=1024,
    threadblocks=65536,
    resident_threadblocks=65536,
    waitable_threadblocks=65536,
    blocks_per_direction=65536,
    steps=1_000_000,
    waits=1_000_000,
    count=4096,
    offset=2**24,
    elements_per_rank=1_000_000,
    elements=2**24,
)


@dataclass(frozen=True, slots=True)
class OneCclXml(XmlTarget):
    """Target `oneccl-xml` (docs/reference/programs.md). Its limits exceed MSCCL's; steps may have several waits."""

    name: str = "oneccl-xml"
    limits: TargetLimits = ONECCL_LIMITS

    def recognises(self, attributes: Mapping[str, str]) -> bool:
        """Return whether the attribute `format` names the version of oneccl-xml that this class reads."""
        return attributes.get("format") == FORMAT

    def root(self, program: Program) -> dict[str, Attribute]:
        root = {"format": FORMAT} | _root(program, coll=collective_of_ranks(program).name.value)
        if program.switches:
            root["switches"] = " ".join(map(str, program.switches))
        if program.collective.root is not None:
            root["root"] = program.collective.root
        root |= {"inplace": int(program.in_place), "minBytes": program.min_bytes, "maxBytes": program.max_bytes}
        return root | {"origin": program.origin} if program.origin else root

    def assemble(
        self, attributes: XmlAttributes, body: DocumentBody, custom: CustomCollective | None
    ) -> Lifted[Program]:
        attributes.refuse_unknown(ROOT_ATTRIBUTES)
        if attributes.text("format") != FORMAT:
            raise InvalidInput("unknown format of a program: {}", attributes.text("format"), FORMAT)
        text = attributes.text("switches", "")
        switches: tuple[int, ...] = ()
        if text:
            words = text.split(" ")
            if not all(map(_NODE.match, words)) or len(words) >= attributes.integer("ngpus", least=1):
                rule = f"switches of {attributes.location} must be fewer nodes than ngpus, with one space between them"
                raise InvalidInput(rule, repr(text), 'write it as in "8 9"')
            switches = tuple(map(int, words))
        collective = _read_collective(attributes, {}, None if switches else custom)
        if switches:
            collective = switch_collective(collective, len(body.ranks) - len(switches), len(switches))
        return Lifted(replace(_program_of(self, attributes, body, collective), switches=switches), body.findings)


# MSCCL (microsoft/msccl) reads files with a character scanner instead of an XML parser, and each rank checks only its
# part of the file, so a faulty file may hang the job. Therefore the writer uses only syntax that the scanner
# understands, and the reader reports everything that the runtime would reject or misread.

LONGEST_NAME = 63
SPECIAL_NAME = "2D"  # makes the runtime execute its built-in alltoall instead of the file
MIN_THREADS = 64  # calls can fail with fewer threads, or if the number of threads is not a power of two
LARGEST_BYTES = 2**31 - 1  # the runtime counts elements (bytes for allgather) in 32 bits
DEFAULT_MAX_BYTES = 2**27 - 1  # the runtime's limit for files without an upper bound
MAX_SCRATCH_BYTES = 2**34  # scratch for the largest vector is allocated when a communicator is created

MSCCL_LIMITS = TargetLimits(
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
    alltoall_in_place=False,
    message_buffers=MSCCL_BUFFERS,
)


def _msccl_root(program: Program, coll: str, max_bytes: int, **marks: Attribute) -> dict[str, Attribute]:
    places = {"inplace": int(program.in_place), "outofplace": int(not program.in_place)}
    root = _root(program, coll=coll, **places, minBytes=program.min_bytes, maxBytes=max_bytes, **marks)
    # The runtimes ignore unknown attributes. Chorale needs `marks`, `root` and `origin` to read the file back.
    if program.collective.root is not None:
        root["root"] = program.collective.root
    return root | {"origin": program.origin} if program.origin else root


@dataclass(frozen=True, slots=True)
class MscclXml(XmlTarget):
    """Target `msccl-xml`. A rank has at most 108 blocks, because an A100 can run 108 at the same time."""

    name: str = "msccl-xml"
    limits: TargetLimits = MSCCL_LIMITS

    def recognises(self, attributes: Mapping[str, str]) -> bool:
        """Return whether there is no attribute `format`. Only oneccl-xml files have this attribute."""
        return "format" not in attributes

    def root(self, program: Program) -> dict[str, Attribute]:
        """Return the root element's attributes. `maxBytes` is the largest size plus 1 (see `stated_max_bytes`)."""
        if len(program.name) > LONGEST_NAME or program.name == SPECIAL_NAME:
            rule = f"the name of a program must have at most {LONGEST_NAME} characters and not be {SPECIAL_NAME}"
            raise InvalidInput(rule, program.name, "choose another name")
        return _msccl_root(program, program.collective.name.value, (program.max_bytes or LARGEST_BYTES) + 1)

    def assemble(
        self, attributes: XmlAttributes, body: DocumentBody, custom: CustomCollective | None
    ) -> Lifted[Program]:
        """Return the program in `body`, with a finding for everything that the runtime would reject or misread."""
        above = attributes.integer("maxBytes", DEFAULT_MAX_BYTES + 1, least=1)
        max_bytes = 0 if above > LARGEST_BYTES else above - 1
        program = _program_of(self, attributes, body, _read_collective(attributes, {}, custom), max_bytes)
        findings = (*body.text_findings, *_msccl_findings(attributes, program, above), *body.findings)
        return Lifted(program, findings, notices=body.notices)

    def stated_max_bytes(self, max_bytes: int) -> int:
        """Return `max_bytes` + 1, because the runtime's upper bound is exclusive."""
        return max_bytes + 1


def _msccl_findings(attributes: XmlAttributes, program: Program, above: int) -> Iterator[ProgramViolation]:
    if attributes.text("coll") not in frozenset(CollectiveName):
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


REDUCE_SCATTER = "reducescatter"
_REQUIRED = ("outofplace", "minBytes", "maxBytes")

EXECUTOR_LIMITS = replace(
    MSCCL_LIMITS, threadblocks=1024, steps=64, waits=64, largest_max_bytes=None, alltoall_in_place=True
)


@dataclass(frozen=True, slots=True)
class MscclExecutorXml(XmlTarget):
    """Target `msccl-executor-xml`: the MSCCL executor for NCCL (Azure/msccl-executor-nccl).

    The scanner and the steps are the same as for msccl-xml. The header differs: it has separate flags for in-place and
    out-of-place execution, both size bounds are required and inclusive, and reduce-scatter is written as one word. The
    runtime's default build allows 64 steps per block. If a file is faulty, no communicator with the file's number of
    ranks can be created.
    """

    name: str = "msccl-executor-xml"
    limits: TargetLimits = EXECUTOR_LIMITS

    def recognises(self, attributes: Mapping[str, str]) -> bool:
        """Return whether Chorale marked the file for this runtime, or the file uses features of only this runtime.

        These features are the spelling `reducescatter`, validity both in place and out of place, and the value 0 of
        `maxBytes`. A file that both runtimes could load is assumed to be for msccl-xml.
        """
        if "format" in attributes:
            return False
        return (
            attributes.get("target") == self.name
            or attributes.get("coll") == REDUCE_SCATTER
            or attributes.get("maxBytes") == "0"
            or attributes.get("inplace") == attributes.get("outofplace") == "1"
        )

    def root(self, program: Program) -> dict[str, Attribute]:
        name = program.collective.name
        if program.collective.custom is not None:
            rule = f"{self.name} can only execute collectives that have a standard name"
            raise InvalidInput(rule, program.collective, "lower it with --target msccl-xml or mscclpp-json")
        coll = REDUCE_SCATTER if name == CollectiveName.REDUCE_SCATTER else name.value
        return _msccl_root(program, coll, program.max_bytes, target=self.name)

    def assemble(
        self, attributes: XmlAttributes, body: DocumentBody, custom: CustomCollective | None
    ) -> Lifted[Program]:
        """Return the program in `body` and the faults in its text. If the file allows both placements, the program is
        in place, and its out-of-place version is in `Lifted.out_of_place`.
        """
        collective = _read_collective(attributes, {REDUCE_SCATTER: CollectiveName.REDUCE_SCATTER.value}, custom)
        program = _program_of(self, attributes, body, collective)
        both = program.in_place and attributes.flag("outofplace", False)
        twin = replace(program, in_place=False) if both else None
        findings = (*body.text_findings, *_executor_findings(attributes, program), *body.findings)
        return Lifted(program, findings, twin, body.notices)


_KNOWN = frozenset(
    f"allreduce allgather {REDUCE_SCATTER} alltoall alltoallv broadcast reduce send recv gather scatter".split()
)
"""Values of the attribute `coll` that the loader of the MSCCL executor accepts."""


def _executor_findings(attributes: XmlAttributes, program: Program) -> Iterator[ProgramViolation]:
    for name in _REQUIRED:
        if name not in attributes:
            yield ProgramViolation.at("header", f"{attributes.location} must have {name}, which the loader requires")
    if program.collective.custom is not None and attributes.text("coll") not in _KNOWN:
        yield ProgramViolation.at("header", f'the loader knows no coll="{attributes.text("coll")}"')
    if attributes.text("coll") == CollectiveName.REDUCE_SCATTER:
        yield ProgramViolation.at("header", f'the loader knows coll="{REDUCE_SCATTER}" only')
    if not (attributes.flag("inplace") or attributes.flag("outofplace", False)):
        yield ProgramViolation.at("never used", "supports neither calls in place nor calls out of place")
    if program.max_bytes and program.max_bytes < program.min_bytes:
        yield ProgramViolation.at("never used", f"maxBytes {program.max_bytes} is below minBytes {program.min_bytes}")


def resources_of(program: AnyProgram) -> dict[str, int]:
    """Return the channel count, the maximum numbers of blocks and scratch chunks per rank, and of steps per block."""
    if isinstance(program, ExecutionPlan):
        steps = [sum(1 for _ in block.every_operation()) for body in program.ranks for block in body.blocks]
    else:
        assert isinstance(program, Program)
        limits = target_named(program.target).limits
        steps = [int(written_steps(rank.columns, limits).max(initial=0)) for rank in program.ranks]
    return {
        "channels": program.channels,
        "threadblocks_max": max(len(rank.blocks) for rank in program.ranks),
        "steps_max": max(steps, default=0),
        "scratch_chunks_max": max(rank.scratch_chunks for rank in program.ranks),
    }


XML_TARGETS: tuple[XmlTarget, ...] = (MscclExecutorXml(), MscclXml(), OneCclXml())
"""All XML targets. A document is read by the first target in this list that recognises it."""
_ALL: tuple[Target, ...] = (*XML_TARGETS, MscclppJson())
TARGET_ALIASES = {
    "msccl": "msccl-xml",
    "mscclexecutor": "msccl-executor-xml",
    "msccl++": "mscclpp-json",
    "mscclpp": "mscclpp-json",
    "oneccl": "oneccl-xml",
}
"""Maps names of runtimes, in lower case and without separators, to names of targets."""
TARGETS: dict[str, Target] = {target.name: target for target in _ALL}


def target_named(name: str) -> Target:
    return TARGETS[name_among("target", name, TARGETS, TARGET_ALIASES)]


def is_in_place_by_default(collective: Collective, target: str) -> bool:
    """Return whether programs that execute `collective` on `target` are in place by default."""
    return collective.name != CollectiveName.ALLTOALL or target_named(target).limits.alltoall_in_place
