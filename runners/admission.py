"""What every runner refuses before it starts: requests that cannot run, programs that cannot be executed."""

from __future__ import annotations

from collections.abc import Iterator

from runners.api import RunRequest, library_result
from runners.element_types import ELEMENT_TYPES
from synth.lowering.check import execution_blockers


def refusal(request: RunRequest, library: tuple[str, ...] = (), computes: bool = False) -> str | None:
    """Return in one line why `request` cannot run, None if it can.

    library:  the runtime's own algorithms
    computes: whether ranks can compute beside a run

    Passing says nothing about right results or deadlocks: those show when the program runs.
    """
    if request.products and not computes:
        return "this runner cannot compute beside a run: use the local runner"
    return next(_request_faults(request, library), None)


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
        for violation in execution_blockers(program, request.topology):
            yield f"program {name}: {violation.message}"
        for size_bytes in request.sizes_bytes:
            if size_bytes < program.min_bytes or (program.max_bytes and size_bytes > program.max_bytes):
                yield f"program {name} serves {program.min_bytes} to {program.max_bytes} bytes, not {size_bytes}"


def _library_faults(request: RunRequest, library: tuple[str, ...]) -> Iterator[str]:
    for algorithm in request.library:
        if algorithm not in library:
            yield f"the runtime has no algorithm of its own named {algorithm}: it has {', '.join(library) or 'none'}"
        if library_result(algorithm) in request.programs:
            yield f"a program must not be named {library_result(algorithm)} beside the algorithm {algorithm}"
