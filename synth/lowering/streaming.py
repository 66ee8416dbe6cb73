"""Text of programs of very many ranks, written and checked rank by rank, so that no program is held as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from chorale.synth.errors import CheckFailed, InvalidInput
from chorale.synth.kernels.threads import in_threads_by_turns
from chorale.synth.lowering.lower import limits_of, lowered_stream
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.programs.check_structure import OpenConnections, RankEnds, rank_structure_violations
from chorale.synth.programs.columns import columns_of
from chorale.synth.programs.limits import TargetLimits, rank_limit_violations
from chorale.synth.programs.program import Program, ProgramStream, ProgramViolation, RankProgram
from chorale.synth.targets.base import DocumentBody, XmlAttributes, XmlTarget
from chorale.synth.targets.canonical_text import NotCanonicalError, read_rank, read_root
from chorale.synth.targets.registry import XML_TARGETS
from chorale.synth.targets.xml_document import rank_text
from chorale.synth.verify.verified import VerifiedSchedule


def streamed_text(verified: VerifiedSchedule, options: LoweringOptions) -> Iterator[bytes]:
    """Return the text that `lower` and the target would give, part by part, one rank at a time.

    Each rank is held to the rules of structure and to the limits of the target, its text is read back and compared with
    what was meant, on all cores of the process, and at the end all connections are compared; the program is not
    executed, and the limit on the elements of a whole file, which is one of our reader, is not applied. InvalidInput at
    the first rank that breaks a rule, CheckFailed where the text says something else. Memory: columns of numbers for
    what moves, and the instructions of a few ranks.
    """
    target = next((each for each in XML_TARGETS if each.name == options.target), None)
    if target is None:
        names = ", ".join(each.name for each in XML_TARGETS)
        raise InvalidInput("a program that is written rank by rank must be XML", options.target, f"choose from {names}")
    stream = lowered_stream(verified, options)
    return _text(target, stream, limits_of(options))


def _text(target: XmlTarget, stream: ProgramStream, limits: TargetLimits) -> Iterator[bytes]:
    """Yield root, ranks and end of a program whose ranks are made, checked and read back a few at a time."""
    root, end = target.parts(stream.head, ())
    yield root
    ranks = len(stream.head.ranks)
    connections = OpenConnections(ranks, stream.head.channels)
    writer = _RankWriter(target, stream, limits, connections)
    read: list[RankProgram] = []
    for written in in_threads_by_turns(writer.written, range(ranks)):
        connections.add(written.sent, written.received)
        read.append(written.frame)
        yield written.text
    refuse_first(list(connections.violations()))
    yield end
    _compare_head(target, stream.head, root, read)


class _WrittenRank(NamedTuple):
    """What a rank sends and receives, how its text was read without the blocks, and the text."""

    sent: RankEnds
    received: RankEnds
    frame: RankProgram
    text: bytes


@dataclass(frozen=True, slots=True)
class _RankWriter:
    """Writes ranks, each for itself: their order does not matter."""

    target: XmlTarget
    stream: ProgramStream
    limits: TargetLimits
    connections: OpenConnections

    def written(self, rank: int) -> _WrittenRank:
        """Return the rank with its text, which says what it executes and keeps all rules. O(its instructions)."""
        body = self.stream.make_rank(rank)
        check_rank(self.stream.head, rank, body, self.limits)
        columns, single_wait = columns_of(body), self.target.limits.single_wait
        text = rank_text(rank, body, single_wait)
        try:
            number, read = read_rank(text, single_wait)
        except NotCanonicalError:
            raise _misread(f"rank {rank}") from None
        frame = replace(read, blocks=())
        if (number, frame) != (rank, replace(body, blocks=())) or columns_of(read) != columns:
            raise _misread(f"rank {rank}")
        return _WrittenRank(*self.connections.ends_of_rank(columns, rank), frame, text)


def _compare_head(target: XmlTarget, head: Program, root: bytes, ranks: list[RankProgram]) -> None:
    attributes = XmlAttributes("algo", 1, read_root(root)[0])
    lifted = target.assemble(attributes, DocumentBody(tuple(ranks)))
    refuse_first(list(lifted.findings))
    if replace(lifted.program, ranks=head.ranks) != head:
        raise _misread("the head of the file")


def _misread(what: str) -> CheckFailed:
    return CheckFailed("a program must be read back as it was meant", what, "report this: the writer is at fault")


def check_rank(head: Program, rank: int, body: RankProgram, limits: TargetLimits) -> None:
    """Hold one rank of a program to the rules of structure and `limits`. InvalidInput at the first that it breaks."""
    alone = replace(head, ranks=(*head.ranks[:rank], body, *head.ranks[rank + 1 :]))
    refuse_first([*rank_structure_violations(alone, rank), *rank_limit_violations(alone, rank, limits)])
    if len(body.blocks) > limits.resident_threadblocks:
        message = f"{len(body.blocks)} thread blocks must run at once, above {limits.resident_threadblocks}"
        refuse_first([ProgramViolation.at("limit", message, rank)])


def refuse_first(violations: list[ProgramViolation]) -> None:
    """Raise InvalidInput for the first of `violations`, if there is one."""
    for violation in violations:
        way_out = "use other channels or instances, or fewer chunks per shard"
        raise InvalidInput(f"a program must fit its target ({violation.rule})", violation.message, way_out)
