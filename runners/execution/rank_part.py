"""Does the work of a rank process in a measurement: creates data, runs the rank's parts of programs, checks results."""

from __future__ import annotations

import base64
import contextlib
import gc
import json
import os
import socket
import struct
import sys
import time
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Generic, NoReturn, Protocol, TypeVar

import numpy as np

from chorale.runners.api.base import StuckInstruction
from chorale.runners.api.elements import (
    ELEMENT_TYPES,
    UNTOUCHED,
    DataPattern,
    Vector,
    expected_output,
    input_data,
    required_pieces,
)
from chorale.runners.engine.library import DataType, Engine, EngineError, Execution, Status, Work, encode_rank
from chorale.runners.plans.rank_plans import PlanBuffers, PlanError, RankPlans, encode_plan
from chorale.synth.collective import Collective, CollectiveName, CustomCollective
from chorale.synth.programs.plans.plan import ExecutionPlan
from chorale.synth.programs.program import QUEUE_DEPTH, AnyProgram, Buffer, Program


@dataclass(frozen=True, slots=True)
class DataLayout:
    """Describes how a collective's vector is laid out on the ranks.

    chunks:   number of chunks in the whole vector
    in_place: whether input and output share memory
    """

    collective: Collective
    ranks: int
    chunks: int
    in_place: bool

    def to_json(self) -> list[Any]:
        """Return the layout as plain JSON values. The definition of a custom collective is left out."""
        return [self.collective.name.value, self.collective.root, self.ranks, self.chunks, self.in_place]

    @staticmethod
    def from_json(value: Sequence[Any], custom: CustomCollective | None = None) -> DataLayout:
        name, root, *shape = value
        return DataLayout(Collective(CollectiveName(name), root, custom), *shape)


class RankMemory:
    """Holds a rank's data in one run.

    elements: number of elements in the whole vector, a multiple of the number of chunks
    given:    existing memory for input and output, which must overlap for an in-place run; None to allocate new memory
    """

    def __init__(
        self,
        layout: DataLayout,
        rank: int,
        elements: int,
        dtype: str,
        pattern: DataPattern,
        given: tuple[Vector, Vector] | None = None,
    ) -> None:
        self._layout, self._rank, self._elements, self._pattern = layout, rank, elements, pattern
        name, shard = layout.collective.name, elements // layout.ranks
        lengths: dict[Buffer, int] = {
            "i": shard if name is CollectiveName.ALLGATHER else elements,
            "o": shard if name is CollectiveName.REDUCE_SCATTER else elements,
        }
        if given is not None:
            self.input, self.output = given[0][: lengths["i"]], given[1][: lengths["o"]]
            self.output[:] = UNTOUCHED
        else:
            buffers = {buffer: np.full(length, UNTOUCHED, dtype) for buffer, length in lengths.items()}
            if layout.in_place:
                whole: Buffer = "o" if name is CollectiveName.ALLGATHER else "i"
                other: Buffer = "i" if whole == "o" else "o"
                start = rank * shard if lengths["i"] != lengths["o"] else 0
                buffers[other] = buffers[whole][start : start + lengths[other]]
            self.input, self.output = buffers["i"], buffers["o"]
        self.input[:] = input_data(layout.collective, pattern, rank, elements)

    def mismatch(self) -> str | None:
        """Return a line that describes the first wrong element of the result, or None if all elements are correct."""
        collective, data = self._layout.collective, (self._pattern, self._rank, self._elements)
        if collective.custom is None:
            expected = expected_output(collective, *data)
        else:
            expected = self.output.copy()  # elements that are not required may have any value
            for first, values in required_pieces(collective.custom, *data):
                expected[first : first + len(values)] = values
        found = None if expected is None else _difference("output", self.output, expected)
        if found is None and not self._layout.in_place:
            found = _difference("input, which must stay as it was,", self.input, input_data(collective, *data))
        return found


def _difference(what: str, found: Vector, expected: Vector) -> str | None:
    wrong = np.flatnonzero(found != expected)
    if not len(wrong):
        return None
    first = int(wrong[0])
    return (
        f"{len(wrong)} of {len(expected)} elements of the {what} are wrong, "
        f"the first is element {first}: {found[first]:.15g} instead of {expected[first]}"
    )


@dataclass(frozen=True, slots=True)
class RankPart:
    """The work of one rank: either its part of a program or its call to a library's collective.

    layout: layout of the data
    words:  encoded program for the engine or the plan executor; empty for a library's collective
    plan:   layout of a plan's memory; None for other programs
    """

    layout: DataLayout
    words: bytes = b""
    plan: PlanBuffers | None = None

    @staticmethod
    def of(program: AnyProgram, rank: int) -> RankPart:
        shape = len(program.ranks), program.chunks, program.in_place
        layout = DataLayout(program.collective, *shape)
        if isinstance(program, ExecutionPlan):
            return RankPart(layout, encode_plan(program, rank).tobytes(), PlanBuffers.of(program))
        assert isinstance(program, Program)
        words = encode_rank(program.collective, *shape, QUEUE_DEPTH[program.protocol], program.ranks[rank])
        return RankPart(layout, words.tobytes())

    @staticmethod
    def of_library(collective: Collective, ranks: int) -> RankPart:
        """Return the part that calls the library's `collective` out of place. All ranks have the same part."""
        return RankPart(DataLayout(collective, ranks, ranks, False))

    def to_json(self) -> dict[str, Any]:
        document: dict[str, Any] = {"layout": self.layout.to_json(), "words": base64.b64encode(self.words).decode()}
        if self.layout.collective.custom is not None:
            document["custom"] = self.layout.collective.custom.to_json()
        return document if self.plan is None else document | {"plan": self.plan.to_json()}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> RankPart:
        plan = PlanBuffers.from_json(value["plan"]) if "plan" in value else None
        custom = CustomCollective.from_json(value["custom"]) if "custom" in value else None
        return RankPart(DataLayout.from_json(value["layout"], custom), base64.b64decode(value["words"]), plan)


LibraryCall = Callable[[int, Collective, RankMemory, float, float], None]
"""Function that runs a library's collective. Arguments: number of the part, collective, data, start time, and time
limit in seconds after the start. Raises TimeoutError after the limit, unless the library's call never returns."""


class RankParts:
    """Loads one rank's parts of programs, prepares fresh data, runs the parts and checks the results.

    library: function that runs library collectives
    plans:   object that executes plans; None if there are no plans
    blocked: thread blocks that were stuck at the end of a run that exceeded its limit or lost a peer
    seconds: mean time per call, for ranks that time calls themselves
    """

    seconds = 0.0

    def __init__(self, engine: Engine, rank: int, library: LibraryCall, plans: RankPlans | None = None) -> None:
        self._engine, self._rank, self._library, self._plans = engine, rank, library, plans
        self._parts: list[RankPart] = []
        self._numbers: list[int | None] = []  # number in the engine or among the plans; None for a library's call
        self._current = 0
        self._memory: RankMemory | None = None
        self._work: Work | None = None
        self._execution: Execution | None = None
        self._start_s = 0.0
        self.blocked: list[StuckInstruction] = []

    @property
    def collective(self) -> Collective:
        return self._parts[0].layout.collective

    @property
    def plans(self) -> list[tuple[bytes, PlanBuffers]]:
        """Return (encoded plan, layout of its memory) for each plan, in the order in which they were loaded."""
        return [(part.words, part.plan) for part in self._parts if part.plan is not None]

    def load(self, documents: Iterable[Mapping[str, Any]]) -> None:
        """Replace the parts by those in `documents`, except for plans, which the caller loads."""
        for part, number in zip(self._parts, self._numbers, strict=True):
            if number is not None and part.plan is None:
                self._engine.unload(number)
        self._parts, plans = list(map(RankPart.from_json, documents)), count()
        self._numbers = [
            next(plans) if part.plan is not None else self._engine.load(array("q", part.words)) if part.words else None
            for part in self._parts
        ]

    def prepare(self, task: Mapping[str, Any]) -> None:
        """Create the data for `task`, a command from `prepare_task`."""
        self._memory = self._work = self._execution = None
        self.blocked = []
        gc.collect()  # automatic garbage collection is off in rank processes
        self._current = task["program"]
        part, number, dtype = self._parts[self._current], self._numbers[self._current], task["dtype"]
        pattern = DataPattern(part.layout.ranks, task["run"], task["seed"], ELEMENT_TYPES[dtype].exact_limit)
        given = None
        if part.plan is not None:
            assert self._plans is not None
            assert number is not None
            given = self._plans.buffers(number, task["elements"], dtype)
        memory = self._memory = RankMemory(part.layout, self._rank, task["elements"], dtype, pattern, given)
        if part.plan is None and number is not None:
            addresses = memory.input.ctypes.data, memory.output.ctypes.data
            room = len(part.words) * task["parts"] if task["trace"] else 0  # an upper bound for the number of steps
            type_ = DataType[dtype.upper()]
            self._work = Work(number, *addresses, task["elements"], type_, parts=task["parts"], step_room=room)

    def run(self, start_s: float, limit_s: float) -> float | None:
        """Start at `start_s`; return the time when this rank had its result. Both are times on the monotonic clock.

        Returns None if nothing was prepared, the time limit `limit_s` was exceeded or a peer was lost. This rank does
        not report these failures, because another rank may have caused them.
        """
        self._start_s, not_before_ns = start_s, round(start_s * 1e9)
        number, memory = self._numbers[self._current], self._memory
        if memory is None:
            return None
        try:
            if self._work is not None:
                work = replace(self._work, limit_s=limit_s, not_before_ns=not_before_ns)
                self._execution = self._engine.execute(work)
                return self._execution.end_ns / 1e9
            if number is not None:
                assert self._plans is not None
                return self._plans.execute(number, limit_s, not_before_ns) / 1e9
        except (EngineError, PlanError) as error:
            if not (error.is_late if isinstance(error, PlanError) else is_silent(error)):
                raise
            lines = (line.split(" ", 2) for line in error.blocked.splitlines())
            self.blocked = [(int(block), int(step), why) for block, step, why in lines]
            return None
        try:
            self._library(self._current, self.collective, memory, start_s, limit_s)
        except TimeoutError:
            return None
        return time.monotonic()

    def complaint(self) -> str | None:
        """Return a line that describes the first wrong element of the last result, or None if all are correct."""
        return None if self._memory is None else self._memory.mismatch()

    @property
    def steps(self) -> list[list[float]]:
        """Return the recorded steps of the last run, each as [block, step, part, ready time, start time, end time].
        Times are in seconds since the common start.
        """
        times = () if self._execution is None else self._execution.steps
        ends = ((one, (one.ready_ns, one.start_ns, one.end_ns)) for one in times)
        return [
            [one.block, one.step, one.part, *(ns / 1e9 - self._start_s if ns else 0.0 for ns in times_ns)]
            for one, times_ns in ends
        ]


def is_silent(error: EngineError) -> bool:
    """Return whether the failure is a timeout or the loss of a peer. This rank need not report these, because the
    runner notices them anyway.
    """
    return error.status in (Status.TIMEOUT, Status.PEER_LOST)


Message = dict[str, Any]

_LENGTH = struct.Struct("<I")
_MAX_BYTES = 2**30


class FramedSocket:
    """Sends and receives JSON documents, each preceded by its length, over a socket between a runner and a rank.

    `deadline` is a `time.monotonic()` time, after which calls raise TimeoutError.
    """

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream
        self.fileno, self.close = stream.fileno, stream.close

    def send(self, document: Message, deadline: float | None = None) -> None:
        """Write `document`. Raises OSError when the other end is gone."""
        body = json.dumps(document, separators=(",", ":")).encode()
        self._limit(deadline)
        self._stream.sendall(_LENGTH.pack(len(body)) + body)

    def receive(self, deadline: float | None = None) -> Message | None:
        """Return the next document, or None when the other end is gone."""
        head = self._read(_LENGTH.size, deadline)
        if head is None:
            return None
        (length,) = _LENGTH.unpack(head)
        if length > _MAX_BYTES:
            raise ConnectionError(f"control message of {length} bytes")
        body = self._read(length, deadline)
        return None if body is None else dict(json.loads(body))

    def _read(self, length: int, deadline: float | None) -> bytes | None:
        content = bytearray(length)
        view = memoryview(content)
        while view:
            self._limit(deadline)
            try:
                count = self._stream.recv_into(view)
            except ConnectionResetError:
                return None
            if count == 0:
                return None
            view = view[count:]
        return bytes(content)

    def _limit(self, deadline: float | None) -> None:
        remaining = None if deadline is None else deadline - time.monotonic()
        if remaining is not None and remaining <= 0:
            raise TimeoutError
        self._stream.settimeout(remaining)


class RankWork(Protocol):
    """Defines the work that a rank process does when the runner commands it; `RankParts` implements it."""

    @property
    def blocked(self) -> list[StuckInstruction]: ...
    @property
    def seconds(self) -> float: ...
    def prepare(self, task: Mapping[str, Any]) -> None: ...
    def run(self, start_s: float, limit_s: float, /) -> float | None: ...
    def complaint(self) -> str | None: ...
    @property
    def steps(self) -> Sequence[Sequence[float]]: ...


WorkOfRank = TypeVar("WorkOfRank", bound=RankWork)


class SocketRank(Generic[WorkOfRank]):
    """Executes the runner's commands in the process of one rank. The commands arrive over a socket, and get replies:

        prepare  program, size, and how to create the data           -> ready
        go       start time and time limit                           -> done, with the end time
        check                                                        -> checked, with the first wrong element and the
                                                                        last run's steps if they were recorded
        status                                                       -> blocked, with what blocks waited for
        clock                                                        -> time of the monotonic clock

    The process ends when `control` is closed. If a run fails because of another rank, this rank sends no reply.
    """

    def __init__(
        self, control: FramedSocket, parts: WorkOfRank, **commands: Callable[[Message], Message | None]
    ) -> None:
        """Prepare to serve `parts` over `control`. `commands` maps the names of further commands to their functions."""
        self._control, self._parts = control, parts
        self._task: Message = {"program": 0}
        self._commands: dict[str, Callable[[Message], Message | None]] = {
            "prepare": self._prepare,
            "go": self._go,
            "check": lambda _: {
                "answer": "checked", "complaint": self._parts.complaint(), "steps": self._parts.steps
            },
            "clock": lambda _: {"answer": "time", "time": time.monotonic()},
            "status": lambda _: {
                "answer": "blocked", "program": self._task["program"], "blocks": self._parts.blocked
            },
            **commands,
        }  # fmt: skip

    def serve(self) -> None:
        """Execute commands and reply to them until the runner closes the connection."""
        gc.disable()  # no pauses while links are timed; a run leaves no cycles behind
        gc.freeze()  # imported objects need not be scanned in every run
        while (command := self._control.receive()) is not None:
            try:
                answer = self._commands[command["do"]](command)
            except EngineError as error:
                if not is_silent(error):
                    raise
                answer = None
            if answer is not None:
                self._control.send(answer)

    def _prepare(self, command: Message) -> Message:
        self._task = command
        self._parts.prepare(command)
        return {"answer": "ready"}

    def _go(self, command: Message) -> Message | None:
        end_s = self._parts.run(command["at"], command["limit_s"])
        return None if end_s is None else {"answer": "done", "end": end_s, "seconds": self._parts.seconds}


def be_rank(control: FramedSocket, work: Callable[[], None]) -> NoReturn:
    """Call `work`, report errors to the runner, and end this process without running libraries' clean-up code."""
    code = 1
    try:
        work()
        code = 0
    except Exception as error:  # any error
        message = f"{type(error).__name__}: {error}"
        sys.stderr.write(f"{message}\n")
        with contextlib.suppress(OSError):
            control.send({"answer": "error", "message": message})
    finally:
        os._exit(code)
