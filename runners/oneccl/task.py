"""What each rank is asked to do, as the text that its interpreter reads (interpreter/task.cpp)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from chorale.runners.api import RunRequest
from chorale.runners.data import DataPattern
from chorale.runners.element_types import ELEMENT_TYPES
from chorale.runners.oneccl.order import RunEntry
from chorale.synth.collective import CollectiveName
from chorale.synth.programs.program import QUEUE_DEPTH, Instruction, Program, RankProgram, ThreadBlock

Words = Iterable[str | int | float]

START_LIMIT_S = 30.0
"""How long the ranks may take to find one another, before the time limit of the request counts."""


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """Misbehaviour of one rank on purpose, for tests, in every run from number `run` on.

    kind: `crash`, `hang`, `wrong` (a wrong element in the result), or `slow` (a pause before each instruction)
    """

    rank: int
    kind: str
    run: int = 0
    pause_us: int = 0


def task_text(request: RunRequest, order: Sequence[RunEntry], rank: int, fault: InjectedFault | None = None) -> str:
    """Return the task of `rank`: every program, then every run in order."""
    programs = list(request.programs.values())
    collective = programs[0].collective
    channels = max(program.channels for program in programs)
    words: list[str | int | float] = ["chorale-task-1", rank, len(programs[0].ranks), request.dtype]
    words += [collective.name.value, collective.root or 0, START_LIMIT_S, request.timeout_s, channels]
    words += _fault(fault if fault is not None and fault.rank == rank else None)
    words += ["programs", len(programs) + 1]
    for program in programs:
        words += _program(program, program.ranks[rank])
    words += _library_buffers(programs[0])
    words += ["runs", len(order)]
    for number, entry in enumerate(order):
        words += _run(request, len(programs[0].ranks), number, entry)
    return " ".join(map(str, [*words, "end\n"]))


def _fault(fault: InjectedFault | None) -> Words:
    return ("none", 0, 0) if fault is None else (fault.kind, fault.run, fault.pause_us)


def _program(program: Program, rank: RankProgram) -> Words:
    yield from (program.chunks, rank.scratch_chunks, QUEUE_DEPTH[program.protocol], int(program.in_place))
    yield from ("blocks", len(rank.blocks))
    for block in rank.blocks:
        yield from _block(block)


def _block(block: ThreadBlock) -> Words:
    yield from (-1 if peer is None else peer for peer in (block.send_peer, block.recv_peer))
    yield from (block.channel, "steps", len(block.instructions))
    for step in block.instructions:
        yield from _instruction(step)


def _instruction(step: Instruction) -> Words:
    yield from (step.op.value, step.src.buffer, step.src.offset, step.dst.buffer, step.dst.offset, step.count)
    yield from ("waits", len(step.waits))
    for wait in step.waits:
        yield from (wait.block, wait.step)


def _library_buffers(program: Program) -> Words:
    """Return a program without blocks, for the buffers of library runs: in place where `program` is.

    oneCCL's broadcast has one buffer only.
    """
    in_place = program.in_place or program.collective.name is CollectiveName.BROADCAST
    return (len(program.ranks), 0, 1, int(in_place), "blocks", 0)


def _run(request: RunRequest, ranks: int, number: int, entry: RunEntry) -> Words:
    pattern = DataPattern(ranks, number + 1, request.seed, ELEMENT_TYPES[request.dtype].exact_limit)
    is_library = entry.program is None
    program = len(request.programs) if entry.program is None else entry.program
    yield from (int(is_library), program, entry.elements, entry.parts)
    yield from (pattern.offset, pattern.bases, pattern.slopes, "weights", ranks, *pattern.weights().tolist())
