"""Engines of all ranks of a job in one process: each rank is a thread while it connects or executes."""

import ctypes
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np

from chorale.runners.engine.library import DataType, Engine, Execution, ReduceOp, Work, encode_rank
from chorale.synth.collective import CollectiveName
from chorale.synth.programs.program import QUEUE_DEPTH, Program
from tests.native.mailbox import Mailbox
from tests.unit.synth.lowering.programs import block, program, step

TOKEN = b"0123456789abcdef"
TRANSPORTS = ("tcp", "unix", "shm", "mixed", "messages", "patient messages")
"""Mixed: some pairs of ranks over TCP, some over Unix sockets, some over shared memory; patient: sends wait."""

_numbers = itertools.count()
Result = TypeVar("Result")


class Job:
    """One engine for each rank. Load programs, then connect, then run them; close at the end."""

    def __init__(
        self, ranks: int, transport: str, options: Mapping[str, int] | None = None, library: Path | None = None
    ) -> None:
        self.engines = [Engine(rank, ranks, library) for rank in range(ranks)]
        self._threads = ThreadPoolExecutor(ranks)
        self._transport = transport
        self.mailbox = Mailbox(ranks, transport.startswith("patient")) if "messages" in transport else None
        for engine, (option, value) in itertools.product(self.engines, (options or {}).items()):
            engine.set(option, value)
        self._addresses = [self._listen(rank) for rank in range(ranks)]

    def _listen(self, rank: int) -> dict[str, str]:
        if self.mailbox is not None:
            return {}
        name = f"chorale-test-{os.getpid()}-{next(_numbers)}"
        engine = self.engines[rank]
        kinds = ("tcp", "shm") if self._transport == "mixed" else (self._transport,)
        bound = {kind: engine.listen("tcp:127.0.0.1" if kind == "tcp" else f"{kind}:{name}") for kind in kinds}
        if "shm" in bound:
            bound["unix"] = f"unix:{name}"  # who brings no memory to a listener is served without
        return bound

    def load(self, program: Program) -> int:
        """Load `program` at all ranks; return its number, which is the same there."""
        depth, count = QUEUE_DEPTH[program.protocol], len(program.ranks)
        numbers = {
            engine.load(encode_rank(program.collective, count, program.chunks, program.in_place, depth, part))
            for engine, part in zip(self.engines, program.ranks, strict=True)
        }
        (number,) = numbers
        return number

    def addresses(self, rank: int) -> list[str]:
        kinds = ("tcp", "unix", "shm") if self._transport == "mixed" else (self._transport,)
        chosen = [kinds[(min(rank, other) * 7 + max(rank, other)) % len(kinds)] for other in range(len(self.engines))]
        return [bound[kind] for bound, kind in zip(self._addresses, chosen, strict=True)]

    def connect(self, limit_s: float = 20.0) -> None:
        if self.mailbox is None:
            self.each(lambda rank: self.engines[rank].connect(self.addresses(rank), TOKEN, limit_s))
            return
        for rank, engine in enumerate(self.engines):
            messages = self.mailbox.messages(rank)
            engine.use_messages(ctypes.addressof(messages))

    def run(self, works: Sequence[Work]) -> list[Execution]:
        """Execute at all ranks at once. Raises the failure of the lowest rank that has one."""
        return self.each(lambda rank: self.engines[rank].execute(works[rank]))

    def each(self, call: Callable[[int], Result]) -> list[Result]:
        """Call for each rank in its thread; return or raise when all have ended."""
        calls = [self._threads.submit(call, rank) for rank in range(len(self.engines))]
        errors = [done.exception() for done in calls]
        for error in errors:
            if error is not None:
                raise error
        return [done.result() for done in calls]

    def failures(self, call: Callable[[int], object]) -> list[BaseException | None]:
        return [done.exception() for done in [self._threads.submit(call, rank) for rank in range(len(self.engines))]]

    def close(self) -> None:
        self._threads.shutdown()
        for engine in self.engines:
            engine.close()
        if self.mailbox is not None:
            self.mailbox.close()


def one_way(messages: int = 1, protocol: str = "Simple") -> Program:
    """Rank 0 sends all it has to rank 1, in so many messages of a chunk."""
    steps = range(messages)
    sender = block(1, None, *(step("s", f"i{chunk}") for chunk in steps))
    receiver = block(None, 0, *(step("r", f"i{chunk}") for chunk in steps))
    return program(CollectiveName.BROADCAST, messages, [sender], [receiver], protocol=protocol)


def exchange(protocol: str = "Simple") -> Program:
    """Two ranks add up what they have: both send, both receive."""
    return program(
        CollectiveName.ALLREDUCE,
        1,
        *([block(peer, None, step("s", "i0", "s0")), block(None, peer, step("rrc", "i0", "i0", 1, [(0, 0)]))]
          for peer in (1, 0)),
        protocol=protocol,
    )  # fmt: skip


def around_a_corner() -> Program:
    """Rank 0 sends to 1, then to 2, which sends to 1; and 1 wants what 2 sends before what 0 sent first."""
    first = [block(1, None, step("s", "i0")), block(2, None, step("s", "i0", waits=[(0, 0)]))]
    second = [block(None, 2, step("r", "s0")), block(None, 0, step("r", "i0", waits=[(0, 0)]))]
    third = [block(None, 0, step("r", "i0")), block(1, None, step("s", "i0", waits=[(0, 0)]))]
    return program(CollectiveName.BROADCAST, 1, first, second, third, scratch=1)


def broadcast_once(job: Job, number: int, elements: int, limit_s: float = 10.0) -> None:
    """Let rank 0 send bytes to the others, in place, and see that they come."""
    rng = np.random.default_rng(elements)
    arrays = [rng.integers(0, 256, elements, dtype=np.uint8) for _ in job.engines]
    addresses = [int(array.ctypes.data) for array in arrays]
    job.run([Work(number, at, at, elements, DataType.UINT8, ReduceOp.SUM, 1, limit_s) for at in addresses])
    assert all((arrays[0] == array).all() for array in arrays)
