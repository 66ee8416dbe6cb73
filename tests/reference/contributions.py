"""What a collective means, chunk by chunk: contents before and after, as sets of contributions.

A value stands for the sum of the contributions of some ranks to one chunk of the vector. It is one integer:
`identity << ranks | mask`, bit r of the mask for the contribution of rank r.
"""

from chorale.synth.collective import CollectiveName
from chorale.synth.programs.memory import buffer_chunks
from chorale.synth.programs.program import Program
from tests.reference.program_interpreter import UNKNOWN, DomainError


def add(left: int, right: int, ranks: int) -> int:
    """Return the sum of two values; DomainError for different chunks or a contribution counted twice."""
    if left >> ranks != right >> ranks:
        raise DomainError(f"adds {describe(left, ranks)} to {describe(right, ranks)}")
    if left & right & ((1 << ranks) - 1):
        raise DomainError(f"counts a contribution twice: {describe(left, ranks)} and {describe(right, ranks)}")
    return left | right


def describe(value: int | None, ranks: int) -> str:
    """Return `value` in words, short whatever the number of ranks."""
    if value is None or value == UNKNOWN:
        return "nothing" if value is None else "what was never written"
    mask = value & ((1 << ranks) - 1)
    members = [rank for rank in range(ranks) if mask >> rank & 1]
    names = ", ".join(map(str, members[:8])) + (", ..." if len(members) > 8 else "")
    return f"chunk {value >> ranks} of rank{'s' if len(members) > 1 else ''} {names}"


def initial_inputs(program: Program, rank: int) -> list[int]:
    """Return the value of each chunk of the input of `rank`."""
    ranks, chunks, name = len(program.ranks), program.chunks, program.collective.name
    count, _ = buffer_chunks(name, chunks, ranks)
    first = 0
    if name == CollectiveName.ALLGATHER:
        first = rank * count
    elif name == CollectiveName.ALLTOALL:
        first = rank * chunks  # every rank sends data of its own
    return [(first + chunk) << ranks | 1 << rank for chunk in range(count)]


def expected_outputs(program: Program, rank: int) -> list[int] | None:
    """Return the value that each chunk of the output of `rank` must have; None where its output is not defined."""
    ranks, chunks, collective = len(program.ranks), program.chunks, program.collective
    _, count = buffer_chunks(collective.name, chunks, ranks)
    everyone = (1 << ranks) - 1
    share = max(1, chunks // ranks)
    if collective.name == CollectiveName.ALLGATHER:
        return [chunk << ranks | 1 << chunk // share for chunk in range(count)]
    if collective.name == CollectiveName.REDUCE_SCATTER:
        return [(rank * count + chunk) << ranks | everyone for chunk in range(count)]
    if collective.name == CollectiveName.BROADCAST:
        return [chunk << ranks | 1 << (collective.root or 0) for chunk in range(count)]
    if collective.name == CollectiveName.ALLTOALL:
        return [_exchanged(chunk, rank, share, chunks) << ranks | 1 << chunk // share for chunk in range(count)]
    if collective.name == CollectiveName.REDUCE and rank != collective.root:
        return None
    return [chunk << ranks | everyone for chunk in range(count)]


def _exchanged(chunk: int, rank: int, share: int, chunks: int) -> int:
    """Return the identity of what alltoall puts at `chunk` of `rank`: sender's part for `rank`."""
    sender, within = divmod(chunk, share)
    return sender * chunks + rank * share + within
