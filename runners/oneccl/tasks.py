"""The order of all runs of a request, and the text that tells the interpreter of each rank about them.

oneCCL reads once, at its start, which algorithm serves which range of sizes. So each library algorithm is measured at
sizes of its own, a few elements apart, with a range for each. interpreter/main.cpp reads the text; programs are in the
words that the engine takes.
"""

from __future__ import annotations

import math
import random
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from chorale.runners.api.base import (
    ExecutionTrace,
    FailureKind,
    RankTrace,
    RunRequest,
    SizeMeasurement,
    StuckInstruction,
    library_result,
    median_trace,
)
from chorale.runners.api.elements import ELEMENT_TYPES, DataPattern
from chorale.runners.api.units import divisible_size
from chorale.runners.engine.library import DataType, encode_rank
from chorale.runners.execution.rounds import DeadlinePassed, RunStopped
from chorale.runners.oneccl.install import INTERPRETER
from chorale.runners.process_launch.processes import STDERR, Host, ProcessHandle, ProcessSpec
from chorale.synth.collective import CollectiveName
from chorale.synth.programs.program import QUEUE_DEPTH, Program

_RANGE_BYTES = 16

ALGORITHMS: Mapping[str, tuple[str, ...]] = {
    CollectiveName.ALLREDUCE: ("ring", "double_tree", "recursive_doubling", "rabenseifner", "2d", "nreduce"),
    CollectiveName.ALLGATHER: ("ring", "naive", "flat", "multi_bcast"),
    CollectiveName.REDUCE_SCATTER: ("ring", "naive"),
    CollectiveName.BROADCAST: ("ring", "double_tree", "naive"),
    CollectiveName.REDUCE: ("ring", "tree", "double_tree", "rabenseifner"),
    CollectiveName.ALLTOALL: ("naive", "scatter"),
}
"""What oneCCL's build for CPUs has over libfabric, by collective."""

VARIABLES: Mapping[str, str] = {
    CollectiveName.ALLREDUCE: "CCL_ALLREDUCE",
    CollectiveName.ALLGATHER: "CCL_ALLGATHERV",
    CollectiveName.REDUCE_SCATTER: "CCL_REDUCE_SCATTER",
    CollectiveName.BROADCAST: "CCL_BCAST",
    CollectiveName.REDUCE: "CCL_REDUCE",
    CollectiveName.ALLTOALL: "CCL_ALLTOALL",
}
"""The variable that says which algorithm serves which sizes."""

_BY_SHARD = frozenset({CollectiveName.ALLGATHER, CollectiveName.REDUCE_SCATTER, CollectiveName.ALLTOALL})
"""Collectives whose size, as oneCCL sees it, is that of one rank's shard."""


@dataclass(frozen=True, slots=True)
class LibrarySizes:
    """elements:    (algorithm, position in the request's sizes) -> elements of the whole vector it is measured on
    environment: the variable that makes oneCCL choose the algorithms by these sizes
    """

    elements: Mapping[tuple[str, int], int]
    environment: Mapping[str, str]


def library_sizes(request: RunRequest, collective: CollectiveName) -> LibrarySizes:
    """Return at which sizes, each at least the one asked for, the algorithms of `request` are measured."""
    element_bytes = ELEMENT_TYPES[request.dtype].dtype.itemsize
    ranks = request.topology.compute_count if collective in _BY_SHARD else 1
    elements: dict[tuple[str, int], int] = {}
    used: dict[int, str] = {}  # number of the range -> algorithm
    for position, size_bytes in enumerate(request.sizes_bytes):
        for algorithm in request.library:
            number = -(-size_bytes // (ranks * _RANGE_BYTES))
            while number in used:
                number += 1
            used[number] = algorithm
            elements[algorithm, position] = number * _RANGE_BYTES // element_bytes * ranks
    ranges = (f"{name}:{n * _RANGE_BYTES}-{n * _RANGE_BYTES + _RANGE_BYTES - 1}" for n, name in sorted(used.items()))
    return LibrarySizes(elements, {VARIABLES[collective]: ";".join(ranges)} if used else {})


@dataclass(frozen=True, slots=True)
class RunEntry:
    """One run of a program, or of a library algorithm, which has no number.

    name:     of its results
    size:     position in the request's sizes
    elements: of the whole vector
    parts:    into which every chunk is cut; the blocks go through their instructions once for each
    measured: whether its time counts; warm-up does not
    """

    name: str
    program: int | None
    size: int
    elements: int
    parts: int
    measured: bool


def run_order(request: RunRequest, library_sizes: LibrarySizes) -> list[RunEntry]:
    """Return every run of `request` in order: size by size, in each round every program and algorithm once."""
    shuffled = random.Random(request.seed)  # noqa: S311 - an order, not a secret
    entries: list[RunEntry] = []
    for size in range(len(request.sizes_bytes)):
        calls = [(library_result(name), None, size, library_sizes.elements[name, size], 1) for name in request.library]
        round_entries = [*_programs(request, size), *calls]
        for number in range(-request.warmup, request.repeats):
            drawn = shuffled.sample(round_entries, len(round_entries))
            entries += [RunEntry(*entry, measured=number >= 0) for entry in drawn]
    return entries


def run_descriptions(order: list[RunEntry]) -> list[str]:
    """Return each run in words."""
    return [f"run {number}, {entry.name} on {entry.elements} elements" for number, entry in enumerate(order)]


def collect_measurements(
    request: RunRequest, order: list[RunEntry], seconds: list[float]
) -> dict[str, tuple[SizeMeasurement, ...]]:
    """Return the results by name; `seconds` of each entry of `order`. Every result must have been right."""
    element_bytes = ELEMENT_TYPES[request.dtype].dtype.itemsize
    names = [*request.without_plans, *map(library_result, request.library)]
    times_s: dict[tuple[str, int], list[float]] = {}
    sizes: dict[tuple[str, int], int] = {}
    for entry, time_s in zip(order, seconds, strict=True):
        sizes[entry.name, entry.size] = entry.elements * element_bytes
        if entry.measured:
            times_s.setdefault((entry.name, entry.size), []).append(time_s)
    return {
        name: tuple(
            SizeMeasurement(sizes[name, size], requested, tuple(times_s[name, size]), correct=True)
            for size, requested in enumerate(request.sizes_bytes)
        )
        for name in names
    }


def _programs(request: RunRequest, size: int) -> list[tuple[str, int | None, int, int, int]]:
    element_bytes = ELEMENT_TYPES[request.dtype].dtype.itemsize
    counts = [program.chunks for program in request.without_plans.values()]
    elements = divisible_size(request.sizes_bytes[size], element_bytes, counts) // element_bytes
    return [
        (name, number, size, elements, _parts(request, name, program, elements))
        for number, (name, program) in enumerate(request.without_plans.items())
    ]


def _parts(request: RunRequest, name: str, program: Program, elements: int) -> int:
    """Return into how many parts of at most the buffer's size a chunk is cut; one where the request names no buffer."""
    settings = request.settings.get(name)
    chunk_elements = elements // program.chunks
    if settings is None or settings.buffer_bytes is None:
        return 1
    parts = math.ceil(chunk_elements * ELEMENT_TYPES[request.dtype].dtype.itemsize / settings.buffer_bytes)
    return min(parts, chunk_elements)


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
    programs = list(request.without_plans.values())
    collective = programs[0].collective
    channels = max(program.channels for program in programs)
    element_type = DataType[request.dtype.upper()].value
    words: list[str | int | float] = ["chorale-task-3", rank, len(programs[0].ranks), element_type]
    words += [collective.name.value, collective.root or 0, START_LIMIT_S, request.timeout_s, channels]
    has_fault = fault is not None and fault.rank == rank
    words += (fault.kind, fault.run, fault.pause_us) if fault is not None and has_fault else ("none", 0, 0)
    words += [most_steps(programs, rank, order) if request.trace else 0]
    words += ["programs", len(programs)]
    for program in programs:
        shape = len(program.ranks), program.chunks, program.in_place, QUEUE_DEPTH[program.protocol]
        encoded = encode_rank(program.collective, *shape, program.ranks[rank])
        words += ("words", len(encoded), *encoded)
    words += ["runs", len(order)]
    for number, entry in enumerate(order):
        words += _run(request, programs, number, entry)
    return " ".join(map(str, [*words, "end\n"]))


def most_steps(programs: Sequence[Program], rank: int, order: Sequence[RunEntry]) -> int:
    """Return how many steps the longest run has on `rank` at most: each chunk of each part is one."""
    chunks = max(sum(step.count for block in one.ranks[rank].blocks for step in block.instructions) for one in programs)
    return chunks * max(entry.parts for entry in order)


def collect_traces(
    request: RunRequest, order: list[RunEntry], texts: Sequence[str]
) -> dict[str, tuple[ExecutionTrace, ...]]:
    """Return the trace of the median repetition for each program and size; `texts`: the files of all ranks."""
    rows = [{int(line.split(" ", 1)[0]): line for line in text.splitlines()} for text in texts]
    traces: dict[str, list[list[ExecutionTrace]]] = {
        name: [[] for _ in request.sizes_bytes] for name in request.without_plans
    }
    for number, entry in enumerate(order):
        if entry.measured and entry.program is not None and request.trace:
            ranks = tuple(_rank_trace(of_rank[number]) for of_rank in rows)
            size_bytes = entry.elements * ELEMENT_TYPES[request.dtype].dtype.itemsize
            traces[entry.name][entry.size].append(ExecutionTrace(entry.name, size_bytes, ranks))
    return {name: tuple(map(median_trace, sizes)) for name, sizes in traces.items() if all(sizes)}


def _rank_trace(line: str) -> RankTrace:
    """Return the trace of a line: run, start, end, processor time, then seven numbers for each step; times in ns."""
    _, start_ns, end_ns, cpu_ns, *numbers = map(int, line.split())
    steps = [numbers[first : first + 7] for first in range(0, len(numbers), 7)]
    return RankTrace.from_json(
        {"start_s": start_ns / 1e9, "end_s": end_ns / 1e9, "cpu_s": cpu_ns / 1e9, "steps": steps}
    )


def _run(request: RunRequest, programs: Sequence[Program], number: int, entry: RunEntry) -> Words:
    ranks = len(programs[0].ranks)
    pattern = DataPattern(ranks, number + 1, request.seed, ELEMENT_TYPES[request.dtype].exact_limit)
    yield from (int(entry.program is None), entry.program or 0, int(_is_in_place(programs, entry.program)))
    yield from (entry.elements, entry.parts, pattern.offset, pattern.bases, pattern.slopes)
    yield from ("weights", ranks, *pattern.weights().tolist())


def _is_in_place(programs: Sequence[Program], number: int | None) -> bool:
    """Return whether a run's input and output share memory; the library's where those of the first program do.

    oneCCL's broadcast has one buffer only.
    """
    if number is not None:
        return programs[number].in_place
    return programs[0].in_place or programs[0].collective.name is CollectiveName.BROADCAST


FIXED_ENVIRONMENT: Mapping[str, str] = {
    "CCL_ATL_TRANSPORT": "ofi",
    # The interpreter itself gives oneCCL its turns: a worker thread would start operations out of order.
    "CCL_WORKER_OFFLOAD": "0",
    "CCL_WORKER_COUNT": "1",
    "CCL_PROCESS_LAUNCHER": "none",
    "CCL_ALGO_FALLBACK": "0",  # an algorithm that does not serve is an error instead of another algorithm
    "CCL_LOG_LEVEL": "error",
    "CCL_ROOT": ".",
    "FI_PROVIDER": "tcp",
    "FI_PROVIDER_PATH": ".",
    "LD_LIBRARY_PATH": ".",
}
_POLL_S = 0.01
_WATCH_S = 0.03  # while others measure
_KEY_STORE = "key-store"


class RankProcesses:
    """One process on each host, in the order of the ranks; a context manager that leaves nothing behind."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        self._hosts = hosts
        self._started: list[ProcessHandle] = []

    def __enter__(self) -> RankProcesses:
        return self

    def __exit__(self, *_: object) -> None:
        for started in self._started:
            started.kill()
        for started in self._started:
            started.close()
        self._started.clear()

    def start(
        self,
        program: Mapping[str, bytes],
        tasks: Sequence[str],
        environment: Mapping[str, str],
        deadline: float,
    ) -> None:
        """Start all ranks, `program` being the files of the interpreter.

        Without rank 0's key-value store by `deadline`, or when rank 0 ends, the others stay out.
        """
        local = local_ranks(self._hosts)
        key_store: dict[str, bytes] = {}
        for rank, (host, task) in enumerate(zip(self._hosts, tasks, strict=True)):
            files = {**program, "task": task.encode(), **key_store}
            index, size = local[rank]
            variables = {**FIXED_ENVIRONMENT, "CCL_LOCAL_RANK": str(index), "CCL_LOCAL_SIZE": str(size), **environment}
            self._started.append(host.start(ProcessSpec((f"./{INTERPRETER}", host.address), variables, files)))
            if rank == 0:
                address = self._key_store(deadline)
                if not address:
                    return
                key_store[_KEY_STORE] = address

    def codes(self) -> list[int | None]:
        """Return the exit codes of those that were started, None for those that run."""
        return [started.poll() for started in self._started]

    def texts(self, name: str) -> list[str]:
        """Return what each has written to its file `name`."""
        return [started.read(name).decode(errors="replace") for started in self._started]

    def last_error(self, rank: int) -> str:
        """Return the last line that `rank` wrote to its standard error."""
        lines = self._started[rank].read(STDERR).decode(errors="replace").strip().splitlines()
        return " ".join(lines[-1].split()) if lines else "no reason given"

    def wait(self, deadline: float) -> bool:
        """Wait until all have done all runs (True), one has ended, or `deadline` passes (both False)."""
        while not all(text.endswith("end\n") for text in self.texts("results")):
            if any(code is not None for code in self.codes()) or time.monotonic() > deadline:
                return False
            time.sleep(_WATCH_S)
        return True

    def wait_for_reports(self, deadline: float) -> None:
        """Wait until all have ended, at most until `deadline`."""
        while None in self.codes() and time.monotonic() < deadline:
            time.sleep(_POLL_S)

    def _key_store(self, deadline: float) -> bytes:
        rank = self._started[0]
        while time.monotonic() < deadline and rank.poll() is None:
            if address := rank.read(_KEY_STORE):
                return address
            time.sleep(_POLL_S)
        return b""


def local_ranks(hosts: Sequence[Host]) -> list[tuple[int, int]]:
    """Return for each rank its position among those at the same address, and how many those are."""
    addresses = [host.address for host in hosts]
    return [(addresses[:rank].count(address), addresses.count(address)) for rank, address in enumerate(addresses)]


LIMIT_PASSED = 3
"""Exit code of an interpreter that ran into the time limit."""

_REFUSED = "can not select algo"  # what oneCCL says of an algorithm that does not serve a collective
_FREE = "could go on"
_SHOWN = 4


def wrong_result_failure(names: Sequence[str], complaints: Sequence[Sequence[str]]) -> RunStopped | None:
    """Return the failure of the first run that any rank complains about; `complaints` by rank, then by run."""
    for run, of_ranks in enumerate(zip(*complaints, strict=True)):
        wrong = [rank for rank, complaint in enumerate(of_ranks) if complaint]
        if wrong:
            message = f"{names[run]} gave a wrong result on {len(wrong)} of {len(of_ranks)} ranks"
            message += f"; rank {wrong[0]}: {of_ranks[wrong[0]]}"
            return RunStopped(FailureKind.WRONG_RESULT, message, wrong[0])
    return None


def crash_failure(processes: RankProcesses) -> RunStopped | None:
    """Return which rank died of what, None if none did. A rank that loses another gives up with an error of its own.

    A rank that ends because oneCCL has no such algorithm is a rejection.
    """
    codes = [(rank, code) for rank, code in enumerate(processes.codes()) if code is not None]
    for rank, code in codes:
        if code < 0 and code not in (-signal.SIGALRM, -signal.SIGABRT):
            return RunStopped(FailureKind.CRASH, f"rank {rank} was killed by {signal.Signals(-code).name}", rank)
    for rank, code in codes:
        if code not in (LIMIT_PASSED, -signal.SIGALRM):
            reason = processes.last_error(rank)
            kind = FailureKind.REJECTED if _REFUSED in reason else FailureKind.CRASH
            return RunStopped(kind, f"rank {rank} ended with code {code}: {reason}", rank)
    return None


def timeout_failure(
    processes: RankProcesses, names: Sequence[str]
) -> tuple[RunStopped, dict[int, list[StuckInstruction] | None]]:
    """Return the end of ranks that ran into the time limit, and where each is stuck, None for one that does not say.

    To blame is a rank that waits for no other. A rank whose process did not even end does not say; others without a
    report hung inside oneCCL, which happens to those that send to it: they do not say only where all processes ended.
    """
    texts, codes = processes.texts("stuck"), processes.codes()
    silent = [rank for rank, code in enumerate(codes) if code is None]
    silent = silent or [rank for rank, text in enumerate(texts) if not text]
    stuck = {rank: None if rank in silent else _stuck_blocks(text) for rank, text in enumerate(texts)}
    free = [rank for rank, places in stuck.items() for _, _, why in places or () if why == _FREE]
    between = {
        rank: texts[rank].splitlines()[0].split(" ", 2)[2]
        for rank, places in stuck.items()
        if places == [] and texts[rank]
    }
    waited = [f", rank {rank} waited for {purpose}" for rank, purpose in list(between.items())[:_SHOWN]]
    stopped = DeadlinePassed(_doing(processes, names) + "".join(waited))
    stopped.rank = free[0] if free else None
    return stopped, stuck


def _doing(processes: RankProcesses, names: Sequence[str]) -> str:
    if not all(processes.texts("joined")):
        return "the ranks looked for one another"
    done = min(text.count("\n") for text in processes.texts("results"))
    return names[done] if done < len(names) else "the ranks took leave"


def _stuck_blocks(text: str) -> list[StuckInstruction]:
    """Return the unfinished blocks that a rank reports (see interpreter/main.cpp)."""
    lines = [line.split(" ", 3) for line in text.splitlines()]
    return [(int(words[1]), int(words[2]), words[3]) for words in lines if words[0] == "block"]
