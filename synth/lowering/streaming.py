"""Text of programs of very many ranks, written and checked rank by rank, so that no program is held as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from chorale.synth.errors import CheckFailed, InvalidInput
from chorale.synth.lowering.lower import limits_of, lowered_stream
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.programs.check_structure import OpenConnections, rank_structure_violations
from chorale.synth.programs.columns import columns_of
from chorale.synth.programs.limits import TargetLimits, rank_limit_violations
from chorale.synth.programs.program import Program, ProgramStream, ProgramViolation, RankProgram
from chorale.synth.targets.base import DocumentBody, XmlAttributes, XmlTarget
from chorale.synth.targets.canonical_text import NotCanonicalError, read_rank, read_root
from chorale.synth.targets.registry import XML_TARGETS
from chorale.synth.verify.verified import VerifiedSchedule


def streamed_text(verified: VerifiedSchedule, options: LoweringOptions) -> Iterator[bytes]:
    """Return the text that `lower` and the target would give, part by part, one rank at a time.

    Each rank is held to the rules of structure and to the limits of the target, its text is read back and compared with
    what was meant, and at the end all connections are compared; the program is not executed, and the limit on the
    elements of a whole file, which is one of our reader, is not applied. InvalidInput at the first rank that breaks a
    rule, CheckFailed where the text says something else. Memory: columns of numbers for what moves, and the
    instructions of one rank.
    """
    target = next((each for each in XML_TARGETS if each.name == options.target), None)
    if target is None:
        names = ", ".join(each.name for each in XML_TARGETS)
        raise InvalidInput("a program that is written rank by rank must be XML", options.target, f"choose from {names}")
    stream = lowered_stream(verified, options)
    ranks = _checked(stream, limits_of(options))
    return _ReadBack(target, stream.head).parts(ranks)


class _ReadBack:
    """Reads each part of a text before it is handed on."""

    def __init__(self, target: XmlTarget, head: Program) -> None:
        self._target, self._head = target, head
        self._meant: RankProgram | None = None
        self._read: list[RankProgram] = []

    def parts(self, ranks: Iterator[RankProgram]) -> Iterator[bytes]:
        """Yield the text of a program with `ranks`, part by part."""
        parts = self._target.parts(self._head, self._noted(ranks))
        root = next(parts)
        yield root
        for part in parts:
            if self._meant is not None:
                self._compare(part, self._meant)
            yield part
        self._compare_head(root)

    def _noted(self, ranks: Iterator[RankProgram]) -> Iterator[RankProgram]:
        for rank in ranks:
            self._meant = rank
            yield rank
        self._meant = None

    def _compare(self, part: bytes, meant: RankProgram) -> None:
        expected = len(self._read)
        try:
            number, rank = read_rank(part, self._target.limits.single_wait)
        except NotCanonicalError:
            raise _misread(f"rank {expected}") from None
        alone = replace(rank, blocks=())
        if (number, alone) != (expected, replace(meant, blocks=())) or columns_of(rank) != columns_of(meant):
            raise _misread(f"rank {expected}")
        self._read.append(alone)

    def _compare_head(self, root: bytes) -> None:
        attributes = XmlAttributes("algo", 1, read_root(root)[0])
        lifted = self._target.assemble(attributes, DocumentBody(tuple(self._read)))
        _refuse_first(list(lifted.findings))
        if replace(lifted.program, ranks=self._head.ranks) != self._head:
            raise _misread("the head of the file")


def _misread(what: str) -> CheckFailed:
    return CheckFailed("a program must be read back as it was meant", what, "report this: the writer is at fault")


def _checked(stream: ProgramStream, limits: TargetLimits) -> Iterator[RankProgram]:
    connections = OpenConnections(len(stream.head.ranks), stream.head.channels)
    for rank, body in enumerate(stream.ranks()):
        alone = _only(stream.head, rank, body)
        _refuse_first([*rank_structure_violations(alone, rank), *rank_limit_violations(alone, rank, limits)])
        if len(body.blocks) > limits.resident_threadblocks:
            message = f"{len(body.blocks)} thread blocks must run at once, above {limits.resident_threadblocks}"
            _refuse_first([ProgramViolation.at("limit", message, rank)])
        connections.add(columns_of(body), rank)
        yield body
    _refuse_first(list(connections.violations()))


def _only(head: Program, rank: int, body: RankProgram) -> Program:
    """Return the program with one rank filled in."""
    return replace(head, ranks=(*head.ranks[:rank], body, *head.ranks[rank + 1 :]))


def _refuse_first(violations: list[ProgramViolation]) -> None:
    for violation in violations:
        way_out = "use other channels or instances, or fewer chunks per shard"
        raise InvalidInput(f"a program must fit its target ({violation.rule})", violation.message, way_out)
