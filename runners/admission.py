"""What every runner refuses before it starts: requests that cannot run, programs that break the dialect."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from runners.api import FailureKind, RunRequest, library_result
from runners.connections import Paths, program_connections
from runners.element_types import ELEMENT_TYPES
from synth.collective import CollectiveName
from synth.lowering.program import Buffer, Instruction, Place, Program, RankProgram, ThreadBlock
from synth.topology.topology import Topology

SHARDED = (CollectiveName.ALLGATHER, CollectiveName.REDUCE_SCATTER, CollectiveName.ALLTOALL)
"""Collectives whose vector is cut into one shard per rank, so that the ranks must divide the chunks."""


RequestFault = tuple[FailureKind, str]
"""Why a request cannot run, in one line."""


def validate_request(
    request: RunRequest,
    library: Callable[[str], tuple[str, ...]],
    runner_faults: Callable[[RunRequest], Iterator[RequestFault]] | None = None,
    *,
    overlap: bool = False,
) -> RequestFault | None:
    """Return why `request` cannot run, None if it can: first what holds for all runners, then what is the runner's own.

    library:       of the runner, see `Runner.library`
    runner_faults: the rules of the runner; asked only if the request keeps those of all runners
    overlap:       whether ranks can compute beside a run

    Passing says nothing about right results or deadlocks: those show when the program runs.
    """
    if request.products and not overlap:
        return FailureKind.REJECTED, "this runner cannot compute beside a run: use the local runner"
    collectives = {program.collective.name.value for program in request.programs.values()}
    algorithms = library(collectives.pop()) if len(collectives) == 1 else ()
    for reason in _request_faults(request, algorithms):
        return FailureKind.REJECTED, reason
    return None if runner_faults is None else next(runner_faults(request), None)


def chunk_counts(program: Program) -> dict[Buffer, int]:
    """Return how many chunks input and output hold by the collective's definition (scratch: see each rank)."""
    shard = program.chunks // len(program.ranks)
    name = program.collective.name
    return {
        "i": shard if name is CollectiveName.ALLGATHER else program.chunks,
        "o": shard if name is CollectiveName.REDUCE_SCATTER else program.chunks,
    }


def _request_faults(request: RunRequest, library: tuple[str, ...]) -> Iterator[str]:
    if request.dtype not in ELEMENT_TYPES:
        yield f"the element type {request.dtype} is not supported: use {', '.join(ELEMENT_TYPES)}"
    if not request.programs or not request.sizes_bytes:
        yield "a request needs at least one program and one size"
    numbers = (request.repeats - 1, request.warmup, request.products)
    if min(numbers) < 0 or request.timeout_s <= 0 or min(request.sizes_bytes) < 1:
        yield "repeats, sizes and the time limit must be positive"
    if len({program.collective for program in request.programs.values()}) > 1:
        yield "all programs of a request must be for the same collective"
    yield from _library_faults(request, library)
    for name, program in request.programs.items():
        for fault in _program_faults(program, request.topology):
            yield f"program {name}: {fault}"
        for size_bytes in request.sizes_bytes:
            if size_bytes < program.min_bytes or (program.max_bytes and size_bytes > program.max_bytes):
                yield f"program {name} serves {program.min_bytes} to {program.max_bytes} bytes, not {size_bytes}"


def _library_faults(request: RunRequest, library: tuple[str, ...]) -> Iterator[str]:
    for algorithm in request.library:
        if algorithm not in library:
            yield f"the runtime has no algorithm of its own named {algorithm}: it has {', '.join(library) or 'none'}"
        if library_result(algorithm) in request.programs:
            yield f"a program must not be named {library_result(algorithm)} beside the algorithm {algorithm}"


def _program_faults(program: Program, topology: Topology) -> Iterator[str]:
    ranks = len(program.ranks)
    if ranks != topology.compute_count:
        yield f"it has {ranks} ranks, the topology {topology.compute_count}"
        return
    if program.chunks < 1 or (program.collective.name in SHARDED and program.chunks % ranks):
        yield f"its {program.chunks} chunks cannot be shared among {ranks} ranks"
        return
    sizes = chunk_counts(program)
    for rank, rank_program in enumerate(program.ranks):
        for fault in _rank_faults(rank_program, {**sizes, "s": rank_program.scratch_chunks}, rank, ranks):
            yield f"rank {rank} {fault}"
    yield from _connection_faults(program, topology)


def _rank_faults(program: RankProgram, sizes: dict[Buffer, int], rank: int, ranks: int) -> Iterator[str]:
    for block_id, block in enumerate(program.blocks):
        for peer in (block.send_peer, block.recv_peer):
            if peer is not None and (not 0 <= peer < ranks or peer == rank):
                yield f"block {block_id} has peer {peer}, which is not another rank"
        if block.channel < 0:
            yield f"block {block_id} has a negative channel"
        for number, step in enumerate(block.instructions):
            for fault in _instruction_faults(step, block, program, sizes):
                yield f"block {block_id} instruction {number}: {fault}"


def _instruction_faults(
    step: Instruction, block: ThreadBlock, program: RankProgram, sizes: dict[Buffer, int]
) -> Iterator[str]:
    if (step.op.sends and block.send_peer is None) or (step.op.receives and block.recv_peer is None):
        yield f"{step.op} needs a peer that its block does not have"
    if step.count < 1:
        yield f"it works on {step.count} chunks"
    operands: list[Place] = [step.src] * step.op.reads_src + [step.dst] * step.op.writes_dst
    for place in operands:
        if place.offset < 0 or place.offset + step.count > sizes[place.buffer]:
            yield f"chunks {place.offset} to {place.offset + step.count - 1} are outside buffer {place.buffer}"
    for wait in step.waits:
        if not (0 <= wait.block < len(program.blocks) and 0 <= wait.step < _length(program, wait.block)):
            yield f"it waits for instruction {wait.step} of block {wait.block}, which does not exist"


def _length(program: RankProgram, block: int) -> int:
    return len(program.blocks[block].instructions)


def _connection_faults(program: Program, topology: Topology) -> Iterator[str]:
    paths = Paths(topology)
    for connection, ends in program_connections(program).items():
        name = f"connection {connection.src} -> {connection.dst} on channel {connection.channel}"
        if len(ends.senders) != 1 or len(ends.receivers) != 1:
            yield f"{name} has {len(ends.senders)} sending and {len(ends.receivers)} receiving blocks, not one each"
        elif ends.sent != ends.received:
            yield f"{name}: the messages sent do not match the messages received in number or length"
        elif paths.path(connection) is None:
            yield f"{name}: the topology has no path"
