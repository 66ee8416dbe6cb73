"""Measures programs in interleaved rounds on a common clock and checks every result.

A run that cannot continue raises `RunStopped`, which becomes the RunFailure of the request.
"""

import contextlib
import random
import selectors
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Generic, Protocol, Self, TypeVar

from chorale.runners.api.base import (
    FailureKind,
    Outcome,
    RunFailure,
    RunRequest,
    SizeMeasurement,
    StepSpan,
    StuckInstruction,
    library_result,
)
from chorale.runners.api.elements import ELEMENT_TYPES
from chorale.runners.api.programs import equal_parts
from chorale.runners.api.units import divisible_size
from chorale.runners.api.validation import RequestFault, validate_request
from chorale.runners.execution.rank_part import FramedSocket, Message, RankPart
from chorale.runners.measurement.clocks import SAME_CLOCK, ClockOffset
from chorale.runners.measurement.machine import Facts, environment_id, load_average, machine_facts
from chorale.synth.errors import Unavailable
from chorale.synth.programs.memory import with_idle_switches
from chorale.synth.programs.program import AnyProgram, Program
from chorale.synth.topology.expansions import process_network

_SHOWN_BLOCKS = 8
_ANSWER_S = 1.0  # time for replies after a failure
_LEAD_S = 0.008  # time between the command and the start, in which the command must reach every rank
_LEAD_PER_RANK_S = 0.0002
SWITCH_PROCESS = "emulated: a process each, which stores what arrives, adds it up and sends copies"


class RunStopped(Exception):  # noqa: N818 - control flow inside runners, never shown to people
    """Raised to end a measurement. The runner turns it into a RunFailure, which explains `blocked`."""

    def __init__(
        self, kind: FailureKind, message: str, rank: int | None = None, blocked: Sequence[tuple[int, int, int]] = ()
    ) -> None:
        super().__init__(message)
        self.kind, self.message, self.rank, self.blocked = kind, message, rank, blocked


class DeadlinePassed(RunStopped):
    """Raised when the request's time limit has passed."""

    def __init__(self, what: str) -> None:
        super().__init__(FailureKind.TIMEOUT, f"the time limit passed while {what}")


def run_failure_of(
    stopped: RunStopped, blocked: Mapping[int, Sequence[StuckInstruction] | None], environment: Facts
) -> RunFailure:
    """Return the request's failure for the exception `stopped`.

    blocked: after a timeout, each rank's stuck blocks; None for a rank that does not reply. If other ranks reply, the
             silent rank is the cause: it hangs or is too busy, and the others wait for it. During a library's call,
             waiting ranks do not reply either, so the failure names no rank.
    """
    silent = [rank for rank, blocks in blocked.items() if blocks is None]
    stuck = [(rank, *where) for rank, blocks in blocked.items() for where in blocks or ()]
    texts = [stopped.message]
    texts += [
        f"rank {rank} block {block} instruction {step}: {why}" for rank, block, step, why in stuck[:_SHOWN_BLOCKS]
    ]
    texts += [f"{len(stuck) - _SHOWN_BLOCKS} more blocks"] if len(stuck) > _SHOWN_BLOCKS else []
    texts += [f"rank {rank} does not answer" for rank in silent]
    rank = silent[0] if silent and len(silent) < max(2, len(blocked)) else stopped.rank
    return RunFailure(
        stopped.kind, "; ".join(texts), rank, environment, (*stopped.blocked, *(block[:3] for block in stuck))
    )


class RankGroup(Protocol):
    """Controls the processes of all ranks. On a failure, methods raise RunStopped with a message that contains `doing`,
    the description of what the ranks were doing.
    """

    @property
    def ranks(self) -> range: ...

    def request(self, command: Message, deadline: float, doing: str) -> Mapping[int, Message]:
        """Send `command` to every process and return each process's reply."""
        ...

    def timed_start(self, deadline: float, doing: str) -> float:
        """Start the prepared run on all ranks at the same time; return the seconds until the last rank ends."""
        ...

    def blocked_ranks(self) -> dict[int, list[StuckInstruction] | None]:
        """Return each rank's stuck blocks after a timeout; None for a rank that does not reply."""
        ...

    @property
    def pids(self) -> list[int]:
        """Return each rank's process id on its host."""
        ...

    def close(self, gracefully: bool = True) -> None:
        """End the processes. Safe to call twice."""
        ...


class SocketRanks(ABC):
    """A `RankGroup` whose ranks are processes that run a `SocketRank`.

    watched: socket that becomes readable when a process dies; None if there is no such socket

    Every method raises RunStopped if a process dies or `deadline` (of `time.monotonic()`) passes. After that, only
    `blocked_ranks` and `close` may be called.
    """

    watched: FramedSocket | None = None

    def __init__(self, ranks: int) -> None:
        self.ranks = range(ranks)
        self.pids: list[int] = []
        self.clock_error_s = 0.0
        self._channels: list[FramedSocket] = []

    @abstractmethod
    def _death(self) -> RunStopped:
        """Return a failure that names the rank that died and the cause of its death."""

    @abstractmethod
    def _refusal(self, rank: int, message: str) -> RunStopped:
        """Return the failure to raise if `rank` reports the error `message`."""

    def send(self, command: Message | Sequence[Message], deadline: float) -> None:
        """Send `command` to every rank or, if it is a sequence, its n-th command to the n-th rank."""
        for rank, channel in enumerate(self._channels):
            try:
                channel.send(command if isinstance(command, dict) else command[rank], deadline)
            except TimeoutError:
                raise DeadlinePassed(f"rank {rank} did not listen") from None
            except OSError:
                raise self._death() from None

    def receive(self, deadline: float, doing: str) -> dict[int, Message]:
        """Return one reply from each rank. Error messages contain `doing`, which describes what the ranks are doing."""
        replies: dict[int, Message] = {}
        with selectors.DefaultSelector() as selector:
            if self.watched is not None:
                selector.register(self.watched, selectors.EVENT_READ)
            for rank, channel in enumerate(self._channels):
                selector.register(channel, selectors.EVENT_READ, rank)
            while len(replies) < len(self._channels):
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                if not ready:
                    raise DeadlinePassed(doing)
                for key, _ in ready:
                    replies[key.data] = self._read(key.data, deadline)
                    selector.unregister(key.fileobj)
        return replies

    def request(self, command: Message | Sequence[Message], deadline: float, doing: str) -> Mapping[int, Message]:
        self.send(command, deadline)
        return self.receive(deadline, doing)

    def load_parts(
        self, programs: Sequence[AnyProgram], library: Sequence[str], more: Message, deadline: float, doing: str
    ) -> None:
        """Send every rank the command `load` with its parts of `programs`, followed by one part per algorithm in
        `library`. Such a part calls the library for the programs' collective. `more`: additional fields of the command.
        """
        call = RankPart.of_library(programs[0].collective, len(self.ranks)).to_json()
        parts = ([RankPart.of(one, rank).to_json() for one in programs] + [call] * len(library) for rank in self.ranks)
        self.request([{"do": "load", **more, "part": part} for part in parts], deadline, doing)

    def timed_start(self, deadline: float, doing: str) -> float:
        offsets = self._clock_offsets(deadline)
        start = time.monotonic() + _LEAD_S + _LEAD_PER_RANK_S * len(self.ranks)
        go = {"do": "go", "limit_s": max(0.0, deadline - start)}
        self.send([go | {"at": start + offsets[rank].offset_s} for rank in self.ranks], deadline)
        ends = self.receive(deadline, doing)
        self.clock_error_s = max(self.clock_error_s, *(each.error_at(time.monotonic()) for each in offsets.values()))
        return float(max(answer["end"] - offsets[rank].offset_s for rank, answer in ends.items()) - start)

    def _clock_offsets(self, deadline: float) -> Mapping[int, ClockOffset]:
        """Return the offset of each rank's clock from this process's clock."""
        return dict.fromkeys(self.ranks, SAME_CLOCK)

    def blocked_ranks(self) -> dict[int, list[StuckInstruction] | None]:
        deadline = time.monotonic() + _ANSWER_S
        blocked: dict[int, list[StuckInstruction] | None] = dict.fromkeys(self.ranks)
        with selectors.DefaultSelector() as selector:
            for rank, channel in enumerate(self._channels):
                with contextlib.suppress(OSError):
                    channel.send({"do": "status"}, deadline)
                    selector.register(channel, selectors.EVENT_READ, rank)
            while selector.get_map() and (ready := selector.select(max(0.0, deadline - time.monotonic()))):
                for key, _ in ready:
                    answer = None
                    with contextlib.suppress(OSError):
                        answer = self._channels[key.data].receive(deadline)
                    if answer is None or answer["answer"] == "blocked":
                        selector.unregister(key.fileobj)
                        blocked[key.data] = None if answer is None else self._stuck(key.data, answer)
        return blocked

    def _stuck(self, rank: int, answer: Message) -> list[StuckInstruction]:
        return [(block, step, why) for block, step, why in answer["blocks"]]

    def _read(self, rank: int | None, deadline: float) -> Message:
        """Return a rank's reply. Raises RunStopped if the rank has died or reports an error."""
        try:
            answer = None if rank is None else self._channels[rank].receive(deadline)
        except TimeoutError:
            raise DeadlinePassed(f"rank {rank} spoke") from None
        if rank is None or answer is None:
            raise self._death()
        if answer["answer"] == "error":
            raise self._refusal(rank, answer["message"])
        return answer


Environment = dict[str, str | int | float | None]
Group = TypeVar("Group", bound=RankGroup)


class LiveRunner(ABC, Generic[Group]):
    """A `Runner` with one process per rank. The processes are kept for later requests that can use them.

    A failed measurement becomes a RunFailure and ends the processes. Processes also end when this process ends.

    accepts: keyword arguments for `validate_request` that say what requests may contain, such as plans
    """

    name: str
    accepts: ClassVar[Mapping[str, bool]] = {}

    def __init__(self) -> None:
        self._group: Group | None = None
        self._group_key: object = None

    @abstractmethod
    def library(self, collective: str) -> tuple[str, ...]:
        """Return the names of the runtime's own algorithms; see `Runner.library`."""

    def _fault(self, request: RunRequest) -> RequestFault | None:
        return validate_request(request, self.library, self._faults, **self.accepts)

    def _faults(self, request: RunRequest) -> Iterator[RequestFault]:
        """Yield reasons why this runner cannot run `request`. The rules for all runners have already been checked."""
        most = ELEMENT_TYPES[request.dtype].max_ranks
        if request.topology.compute_count > most:
            yield FailureKind.REJECTED, f"data of type {request.dtype} can be checked on at most {most} ranks"

    @abstractmethod
    def _measure(self, request: RunRequest, environment: Environment) -> Outcome:
        """Measure `request`; add facts that affect times to `environment`. Failures raise RunStopped or Unavailable."""

    def submit(self, request: RunRequest) -> Outcome:
        """Run `request`; see `Runner.submit`. Raises InvalidInput if several fabrics match.

        The first request may exceed its time limit, because it may have to build native code, start ranks and probe
        links.
        """
        environment: Environment = dict(machine_facts(), runner=self.name, load_average=load_average())
        if (fault := self._fault(request)) is not None:
            return RunFailure(*fault, environment=environment)
        finished = False
        try:
            outcome = self._measure(request, environment)
            finished = True
        except RunStopped as stopped:
            is_late = isinstance(stopped, DeadlinePassed) and self._group is not None
            blocked = self._group.blocked_ranks() if is_late and self._group is not None else {}
            outcome = run_failure_of(stopped, blocked, environment)
        except Unavailable as missing:
            outcome = RunFailure(FailureKind.UNAVAILABLE, str(missing), environment=environment)
        finally:
            if not finished:
                self._end(gracefully=False)
        return outcome

    @property
    def pids(self) -> list[int]:
        """Return the process ids of the ranks; empty when none are running."""
        return [] if self._group is None else list(self._group.pids)

    def close(self) -> None:
        self._end(gracefully=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _group_for(self, key: object, start: Callable[[], Group]) -> Group:
        """Return the existing processes if they were started for `key`; otherwise end them and start new processes."""
        if self._group is None or self._group_key != key:
            self._end(gracefully=True)
            self._group, self._group_key = start(), key
        return self._group

    def _identify(self, facts: Mapping[str, str | int | float | None], environment: Environment) -> None:
        """Add `facts` that affect times, and an id of all such facts, to `environment`."""
        environment.update(facts)
        environment["environment_id"] = environment_id({**machine_facts(), "runner": self.name, **facts})

    def _end(self, gracefully: bool) -> None:
        group, self._group = self._group, None
        if group is not None:
            group.close(gracefully)


class MeasurementRounds:
    """Measures `request` on `group`, whose ranks have loaded the request's programs and then its library algorithms.

    library_elements: (library algorithm, index of the size) -> number of elements in the whole vector, if it differs
                      from that of the programs
    """

    def __init__(
        self,
        group: RankGroup,
        request: RunRequest,
        deadline: float,
        library_elements: Mapping[tuple[str, int], int] | None = None,
    ) -> None:
        self._group = group
        self._request = request
        self._deadline = deadline
        self._names = [*request.programs, *map(library_result, request.library)]
        self._library_elements = {
            (library_result(name), size): elements for (name, size), elements in (library_elements or {}).items()
        }
        self._random = random.Random(request.seed)  # noqa: S311 - an order, not a secret
        self._runs = 0
        self.traces: dict[str, tuple[tuple[StepSpan, ...], ...]] = {}

    def measure(self) -> dict[str, tuple[SizeMeasurement, ...]]:
        """Measure all sizes; return each name's measurements in the order of sizes. Fill `traces` if requested."""
        request, results = self._request, {name: list[SizeMeasurement]() for name in self._names}
        element_bytes = ELEMENT_TYPES[request.dtype].dtype.itemsize
        counts = [equal_parts(program, element_bytes) for program in request.programs.values()]
        for position, requested_bytes in enumerate(request.sizes_bytes):
            shared = divisible_size(requested_bytes, element_bytes, counts) // element_bytes
            elements = {name: self._library_elements.get((name, position), shared) for name in self._names}
            times_s = {name: list[float]() for name in self._names}
            traces = {name: list[tuple[float, tuple[StepSpan, ...]]]() for name in self._names}
            for round_number in range(-request.warmup, request.repeats):
                for program in self._random.sample(range(len(self._names)), len(self._names)):
                    name = self._names[program]
                    seconds, steps = self._run_once(program, elements[name])
                    if round_number >= 0:
                        times_s[name].append(seconds)
                        traces[name].append((seconds, steps))
            for name, runs in times_s.items():
                size_bytes = elements[name] * element_bytes
                results[name].append(SizeMeasurement(size_bytes, requested_bytes, tuple(runs), correct=True))
            for name, collected in traces.items() if request.trace else ():
                _, median = sorted(collected)[(len(collected) - 1) // 2]
                self.traces[name] = (*self.traces.get(name, ()), median)
        return {name: tuple(sizes) for name, sizes in results.items()}

    def _run_once(self, program: int, elements: int) -> tuple[float, tuple[StepSpan, ...]]:
        """Return the seconds from the common start to the last rank's end, and all steps if they are traced."""
        self._runs += 1
        request, name = self._request, self._names[program]
        task = prepare_task(program, elements, request.dtype, self._runs, request.seed)
        task["trace"] = request.trace
        if (settings := request.settings.get(name)) is not None and settings.buffer_bytes is not None:
            # Chunks are cut into parts, each of which fits into a buffer.
            chunk_elements = elements // request.programs[name].chunks
            chunk_bytes = chunk_elements * ELEMENT_TYPES[request.dtype].dtype.itemsize
            task["parts"] = min(-(-chunk_bytes // settings.buffer_bytes), chunk_elements)
        doing = f"program {name} ran on {elements} elements"
        self._group.request(task, self._deadline, f"the data were prepared: {doing}")
        seconds = self._group.timed_start(self._deadline, doing)
        answers = self._group.request({"do": "check"}, self._deadline, f"checking what {doing}")
        wrong = {rank: answer["complaint"] for rank, answer in answers.items() if answer["complaint"]}
        if wrong:
            rank = min(wrong)
            message = f"{doing} and gave a wrong result on {len(wrong)} of {len(self._group.ranks)} ranks"
            raise RunStopped(FailureKind.WRONG_RESULT, f"{message}; rank {rank}: {wrong[rank]}", rank)
        return seconds, tuple(StepSpan(rank, *step) for rank, each in sorted(answers.items()) for step in each["steps"])


def prepare_task(program: int, elements: int, dtype: str = "float32", run: int = 0, seed: int = 0) -> Message:
    """Return the command to create the data for one run of program number `program`."""
    task: Message = {"do": "prepare", "program": program, "elements": elements, "dtype": dtype}
    return task | {"run": run, "seed": seed, "parts": 1, "trace": False}


def on_switch_processes(request: RunRequest) -> RunRequest:
    """Return `request`, with switches replaced by ranks (processes) if one of its programs uses switches.

    Programs that do not use switches then run on the same network, with idle switch processes. Raises InvalidInput if a
    program without switches does not work in place.
    """
    switches = next((program.switches for program in request.without_plans.values() if program.switches), ())
    if not switches:
        return request
    programs = {
        name: with_idle_switches(program, switches) if isinstance(program, Program) else program
        for name, program in request.programs.items()
    }
    return replace(request, topology=process_network(request.topology), programs=programs)


def switch_facts(request: RunRequest) -> Facts:
    """Return the environment facts about processes that replace switches; {} if there are no such processes."""
    acting = {len(program.switches) for program in request.without_plans.values()}
    return {"switches": SWITCH_PROCESS, "switch_processes": max(acting)} if max(acting, default=0) else {}
