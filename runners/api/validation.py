"""Checks whether a runner can run a request, before anything is started."""

from collections.abc import Callable, Iterator

from chorale.runners.api.base import FailureKind, RunRequest, library_result
from chorale.runners.api.elements import ELEMENT_TYPES
from chorale.synth.programs.library_call import LibraryCall
from chorale.synth.programs.memory import collective_of_ranks
from chorale.synth.targets.judge import execution_blockers


def memory_shortage(request: RunRequest, work_bytes: int) -> str | None:
    """Return a one-line reason why `request` does not fit into memory, or None if it does.

    work_bytes: working memory of a rank in bytes per element of the vector, without input, output, scratch and messages
    """
    largest = max(request.sizes_bytes)
    scratch = max(
        rank.scratch_chunks / program.chunks for program in request.programs.values() for rank in program.ranks
    )
    elements = largest / ELEMENT_TYPES[request.dtype].dtype.itemsize
    ranks = request.topology.compute_count
    needed = ranks * (largest * (3 + scratch) + elements * work_bytes)
    import psutil  # noqa: PLC0415 - most commands do not need it

    free = psutil.virtual_memory().available
    if needed <= free:
        return None
    return f"{largest} bytes on {ranks} ranks need about {needed / 1e9:.1f} GB of memory, {free / 1e9:.1f} GB are free"


RequestFault = tuple[FailureKind, str]
"""Failure kind of a request that cannot run, and the reason in one line."""


def validate_request(
    request: RunRequest,
    library: Callable[[str], tuple[str, ...]],
    runner_faults: Callable[[RunRequest], Iterator[RequestFault]] | None = None,
    *,
    plans: bool = False,
    switches: bool = False,
    settings: bool = False,
) -> RequestFault | None:
    """Return why `request` cannot run, or None if it can. The runner's own rules are checked after the common ones.

    library:       names of the runner's library algorithms, see `Runner.library`
    runner_faults: function that checks the runner's own rules, called only if the common rules are satisfied
    plans:         whether the runner executes plans of one-sided operations
    switches:      whether the runner can emulate switches that reduce or multicast data, with a process for each switch
    settings:      whether the runner measures library settings

    A valid request may still deadlock or give wrong results, which only becomes apparent when the program runs.
    """
    if request.has_plans and not plans:
        return FailureKind.REJECTED, "this runner executes no plans of MSCCL++: use the local runner"
    if any(program.switches for program in request.without_plans.values()) and not switches:
        return FailureKind.REJECTED, "this runner cannot emulate switches that add or multicast: use the local runner"
    if request.has_plans and request.trace:
        return FailureKind.REJECTED, "plans are executed without traces: leave these out"
    if any(isinstance(program, LibraryCall) for program in request.programs.values()) and not settings:
        return FailureKind.REJECTED, "this runner has no library with settings: use the nccl runner"
    collectives = {collective_of_ranks(program).name.value for program in request.programs.values()}
    algorithms = library(collectives.pop()) if len(collectives) == 1 else ()
    for reason in _request_faults(request, algorithms):
        return FailureKind.REJECTED, reason
    return None if runner_faults is None else next(runner_faults(request), None)


def _request_faults(request: RunRequest, library: tuple[str, ...]) -> Iterator[str]:
    if request.dtype not in ELEMENT_TYPES:
        yield f"the element type {request.dtype} is not supported: use {', '.join(ELEMENT_TYPES)}"
    if not request.programs or not request.sizes_bytes:
        yield "a request needs at least one program and one size"
    if min(request.repeats - 1, request.warmup) < 0 or request.timeout_s <= 0 or min(request.sizes_bytes) < 1:
        yield "repeats, sizes and the time limit must be positive"
    if len({collective_of_ranks(program) for program in request.programs.values()}) > 1:
        yield "all programs of a request must be for the same collective"
    for algorithm in request.library:
        if algorithm not in library:
            has = f"it has {', '.join(library) or 'no library'}; the runners mpi and nccl have those of MPI and NCCL"
            yield f"the runtime has no algorithm of its own named {algorithm}: {has}"
        if library_result(algorithm) in request.programs:
            yield f"a program must not be named {library_result(algorithm)} next to the algorithm {algorithm}"
    for name, program in request.programs.items():
        for violation in execution_blockers(program, request.topology):
            yield f"program {name}: {violation.message}"
        for size_bytes in request.sizes_bytes:
            if size_bytes < program.min_bytes or (program.max_bytes and size_bytes > program.max_bytes):
                yield f"program {name} is for {program.min_bytes} to {program.max_bytes} bytes, not {size_bytes}"
