"""From the elements of an XML document to a Program: what all XML targets share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from chorale.synth.collective import STANDARD, Collective, custom_collective
from chorale.synth.errors import InvalidInput
from chorale.synth.programs.limits import TargetLimits
from chorale.synth.programs.program import (
    Instruction,
    Op,
    Program,
    ProgramViolation,
    RankProgram,
    ThreadBlock,
    Wait,
    exact_protocol,
)
from chorale.synth.targets.base import RawBlock, RawProgram, RawRank, RawStep, XmlAttributes, XmlTarget

_OPS = {op.value: op for op in Op}

FoldBlocks = Callable[[int, Sequence[RawBlock], list[ProgramViolation]], list[tuple[Instruction, ...]]]
"""Turns the steps of a rank's blocks, in the order of their ids, into instructions; adds findings to the list."""


@dataclass(frozen=True, slots=True)
class ProgramHeader:
    """The attributes of the root element that targets spell differently."""

    target: str
    collective: Collective
    min_bytes: int
    max_bytes: int


def read_collective(attributes: XmlAttributes, alias: dict[str, str]) -> Collective:
    """Return the collective named by `coll` (or an alias of a name) and, where it is rooted, `root` (0 if missing)."""
    if "coll" not in attributes:
        rule = f"{attributes.location} must say in coll which collective it is for; the runtimes refuse it without"
        raise InvalidInput(rule, "no coll", 'add coll="allreduce", or what the program does')
    text = attributes.text("coll")
    if attributes.collective is not None:
        return custom_collective(attributes.collective)
    name = next((each for each in STANDARD if each.value == alias.get(text, text)), None)
    if name is None:
        names = ", ".join(each.value for each in STANDARD)
        rule = f"a program for another collective than {names} needs a file that says what must be where"
        raise InvalidInput(rule, f'coll="{text}"', "add --collective-file FILE, or correct coll")
    collective = Collective(name)
    return Collective(name, attributes.integer("root", 0, least=0)) if collective.is_rooted else collective


def body_of(target: XmlTarget, raw: RawProgram) -> tuple[tuple[RankProgram, ...], tuple[ProgramViolation, ...]]:
    """Return the ranks of a document of `target`, and the faults that they cannot express. O(steps)."""
    findings: list[ProgramViolation] = []
    count = _rank_count(raw.attributes, target.limits)
    numbered = enumerate(_in_order(raw.ranks, count))
    return tuple(_rank(rank, raw_rank, target.instructions, findings) for rank, raw_rank in numbered), tuple(findings)


def _rank_count(attributes: XmlAttributes, limits: TargetLimits) -> int:
    count = attributes.integer("ngpus", least=1)
    if count > limits.ranks:
        raise InvalidInput(f"ngpus must be at most {limits.ranks}", count, "use fewer ranks")
    return count


def program_of(
    attributes: XmlAttributes, header: ProgramHeader, limits: TargetLimits, ranks: tuple[RankProgram, ...]
) -> Program:
    """Return the program of a document whose root has `attributes`, as the target with `limits` reads it."""
    _rank_count(attributes, limits)
    return Program(
        name=attributes.text("name", ""),
        target=header.target,
        collective=header.collective,
        chunks=attributes.integer("nchunksperloop", least=1),
        in_place=attributes.flag("inplace"),
        protocol=exact_protocol(attributes.text("proto")),
        channels=attributes.integer("nchannels", least=1),
        ranks=ranks,
        min_bytes=header.min_bytes,
        max_bytes=header.max_bytes,
        origin=attributes.text("origin", ""),
    )


def _in_order(ranks: Sequence[RawRank], count: int) -> list[RawRank | None]:
    slots: list[RawRank | None] = [None] * count
    for rank in ranks:
        if rank.id >= count:
            raise InvalidInput("the id of a gpu must be below ngpus", rank.id, f"ngpus is {count}")
        if slots[rank.id] is not None:
            raise InvalidInput("the ids of gpu elements must differ", rank.id, "keep one of them")
        slots[rank.id] = rank
    return slots


def _rank(rank: int, raw: RawRank | None, fold: FoldBlocks, findings: list[ProgramViolation]) -> RankProgram:
    if raw is None:
        findings.append(ProgramViolation.at("missing rank", "the file has no gpu element for it", rank))
        return RankProgram(0, 0, 0, ())
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
    programs = zip(blocks, fold(rank, blocks, findings), strict=True)
    threadblocks = tuple(
        ThreadBlock(_peer(block.send), _peer(block.recv), block.channel, items) for block, items in programs
    )
    return RankProgram(raw.input_chunks, raw.output_chunks, raw.scratch_chunks, threadblocks)


def _peer(number: int) -> int | None:
    return None if number < 0 else number


def instruction_of(step: RawStep, waits: tuple[Wait, ...]) -> Instruction:
    """Return `step` as an instruction after `waits`; InvalidInput for a type that does not exist."""
    op = _OPS.get(step.type)
    if op is None:
        raise InvalidInput("the type of a step must be one that is known", step.type, f"known are {', '.join(_OPS)}")
    return Instruction(op, step.src, step.dst, step.count, waits)
