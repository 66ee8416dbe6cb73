"""Text of programs of very many ranks, written and checked rank by rank, so that no program is held as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from chorale.synth.errors import InvalidInput
from chorale.synth.lowering.lower import limits_of, lowered_stream
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.programs.check_structure import (
    Counts,
    message_counts,
    rank_structure_violations,
    unmatched_connections,
)
from chorale.synth.programs.limits import TargetLimits, rank_limit_violations
from chorale.synth.programs.program import Program, ProgramStream, ProgramViolation, RankProgram
from chorale.synth.targets.registry import XML_TARGETS
from chorale.synth.verify.verified import VerifiedSchedule


def streamed_text(verified: VerifiedSchedule, options: LoweringOptions) -> Iterator[str]:
    """Return the text that `lower` and the target would give, part by part, one rank at a time.

    Each rank is held to the rules of structure and to the limits of the target, and at the end all connections are
    compared; the program is not executed, and the limit on the elements of a whole file, which is one of our reader, is
    not applied. InvalidInput at the first rank that breaks a rule. Memory: columns of numbers for what moves, and the
    instructions of one rank.
    """
    target = next((each for each in XML_TARGETS if each.name == options.target), None)
    if target is None:
        names = ", ".join(each.name for each in XML_TARGETS)
        raise InvalidInput("a program that is written rank by rank must be XML", options.target, f"choose from {names}")
    stream = lowered_stream(verified, options)
    return target.parts(stream.head, _checked(stream, limits_of(options)))


def _checked(stream: ProgramStream, limits: TargetLimits) -> Iterator[RankProgram]:
    sent: Counts = {}
    received: Counts = {}
    for rank, body in enumerate(stream.ranks()):
        alone = _only(stream.head, rank, body)
        _refuse_first([*rank_structure_violations(alone, rank), *rank_limit_violations(alone, rank, limits)])
        if len(body.blocks) > limits.resident_threadblocks:
            message = f"{len(body.blocks)} thread blocks must run at once, above {limits.resident_threadblocks}"
            _refuse_first([ProgramViolation.at("limit", message, rank)])
        for counts, counts_of_rank in zip((sent, received), message_counts(alone), strict=True):
            counts.update(counts_of_rank)
        yield body
    _refuse_first(list(unmatched_connections(sent, received)))


def _only(head: Program, rank: int, body: RankProgram) -> Program:
    """Return the program with one rank filled in."""
    return replace(head, ranks=(*head.ranks[:rank], body, *head.ranks[rank + 1 :]))


def _refuse_first(violations: list[ProgramViolation]) -> None:
    for violation in violations:
        way_out = "use other channels or instances, or fewer chunks per shard"
        raise InvalidInput(f"a program must fit its target ({violation.rule})", violation.message, way_out)
