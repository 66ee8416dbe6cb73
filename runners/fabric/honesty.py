"""Which measurements a fabric must not make: those with messages that its links carry faster than their rate."""

from __future__ import annotations

from chorale.runners.api.base import RunRequest
from chorale.synth.programs.program import Program


def smallest_message_bytes(program: Program, size_bytes: int) -> float:
    """Return the size of the smallest message of `program` over a vector of `size_bytes`; that if it sends nothing."""
    chunks = min((message.chunks for message in program.messages()), default=program.chunks)
    return size_bytes * chunks / program.chunks


def dishonest_size(request: RunRequest, honest_bytes: int) -> str | None:
    """Return in one line which size of `request` has messages below `honest_bytes`, None if no size has.

    What a library's algorithm sends is taken to be as small as the vector's part of one rank.
    """
    if honest_bytes <= 0:
        return None
    for size_bytes in sorted(request.sizes_bytes):
        smallest = {
            name: smallest_message_bytes(program, size_bytes) for name, program in request.without_plans.items()
        }
        smallest |= {name: size_bytes / request.topology.compute_count for name in request.library}
        for name, message_bytes in smallest.items():
            if message_bytes < honest_bytes:
                return (
                    f"{name} sends messages of {message_bytes:.0f} bytes at size {size_bytes}: the kernel's bucket "
                    f"carries those below {honest_bytes} bytes faster than the links allow; measure larger sizes, or "
                    "bring the fabric up with --links wire"
                )
    return None
