"""Programs in which switches add or multicast. Each of these switches is a process, numbered after the ranks.

A switch contributes no data and needs no result, so the program of all processes is a custom collective.
"""

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

from chorale.synth.collective import Collective, CollectiveName
from chorale.synth.custom_collective import CustomCollective, RequiredChunk
from chorale.synth.errors import InvalidInput
from chorale.synth.programs.postconditions import AnyProgram
from chorale.synth.programs.program import Program, RankProgram, ThreadBlock

_SHARDED = (CollectiveName.ALLGATHER, CollectiveName.REDUCE_SCATTER)
_IDLE = (ThreadBlock(None, None, 0, ()),)


def collective_of_ranks(program: AnyProgram) -> Collective:
    """Return the collective that `program` executes from the point of view of the ranks, without switch processes."""
    custom = program.collective.custom
    if not isinstance(program, Program) or not program.switches or custom is None:
        return program.collective
    return Collective(CollectiveName(custom.name), program.collective.root)


def rank_count(program: AnyProgram) -> int:
    """Return the number of ranks, without switch processes."""
    return len(program.ranks) - (len(program.switches) if isinstance(program, Program) else 0)


@lru_cache(maxsize=16)
def switch_collective(collective: Collective, ranks: int, switches: int) -> Collective:
    """Return the custom collective in which `ranks` ranks get the result of `collective` with the help of switches.

    The processes are the ranks, followed by `switches` switches. Input and output are the complete vector, in place.
    Raises InvalidInput for an alltoall or an uneven collective. O(ranks^2).
    """
    if collective.name in (CollectiveName.ALLTOALL, CollectiveName.CUSTOM) or collective.name.is_uneven:
        rule = "switches cannot help with {}"
        raise InvalidInput(rule, str(collective), "choose allreduce, allgather, reduce_scatter, broadcast or reduce")
    chunks = ranks if collective.name in _SHARDED else 1
    required = (
        RequiredChunk(rank, chunk, tuple((source, chunk) for source in _sources(collective, ranks, chunk)))
        for rank in range(ranks)
        for chunk in _chunks(collective, rank, chunks)
    )
    custom = CustomCollective(collective.name.value, ranks + switches, chunks, chunks, tuple(required))
    return Collective(CollectiveName.CUSTOM, collective.root, custom)


def _chunks(collective: Collective, rank: int, chunks: int) -> Iterable[int]:
    """Return the chunks that `rank` must have at the end, as indices below `chunks`."""
    if collective.name == CollectiveName.REDUCE_SCATTER:
        return (rank,)
    return () if collective.name == CollectiveName.REDUCE and rank != collective.root else range(chunks)


def _sources(collective: Collective, ranks: int, chunk: int) -> Iterable[int]:
    """Return the ranks whose contributions are in the result of `chunk`."""
    if collective.name == CollectiveName.ALLGATHER:
        return (chunk,)
    return (collective.root or 0,) if collective.name == CollectiveName.BROADCAST else range(ranks)


def with_idle_switches(program: Program, switches: tuple[int, ...]) -> Program:
    """Return `program` with idle processes for `switches`, to compare it with programs in which these switches act.

    Raises:
        InvalidInput: The program is not in place, names two buffers, or already uses other switches.
    """
    if program.switches == switches:
        return program
    ranks, name = len(program.ranks), program.collective.name
    unused = {CollectiveName.ALLGATHER: "input_chunks", CollectiveName.REDUCE_SCATTER: "output_chunks"}.get(name)
    names_both = unused is not None and any(getattr(body, unused) for body in program.ranks)
    if program.switches or not program.in_place or names_both:
        rule = "{} cannot run next to a program with switches that add: it must be in place, with the same switches"
        raise InvalidInput(rule, program.name, "lower it in place")
    shared = max(program.chunks, 1)
    bodies = tuple(replace(body, input_chunks=shared, output_chunks=shared) for body in program.ranks)
    idle = RankProgram(0, 0, 0, _IDLE)
    collective = switch_collective(program.collective, ranks, len(switches))
    return replace(program, collective=collective, ranks=(*bodies, *(idle,) * len(switches)), switches=switches)
