"""The program of a rank process of the nccl runner. The library's collectives run on a communicator with their
settings; programs run as rounds of sends and receives on a communicator without settings."""

from __future__ import annotations

import gc
import json
import os
import socket
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from chorale.runners.api.base import StuckInstruction
from chorale.runners.api.elements import ELEMENT_TYPES, DataPattern, Vector
from chorale.runners.execution.rank_part import DataLayout, FramedSocket, Message, RankMemory, SocketRank, be_rank
from chorale.runners.execution.started_ranks import greet_runner, meet_runner
from chorale.runners.nccl.calls import Nccl, environment, find_library, load_runtime
from chorale.runners.nccl.memory import GpuDevice, HostDevice, RankDevice
from chorale.runners.nccl.parameters import (
    ALGORITHMS,
    PROGRAM,
    PROGRAM_FOLDER,
    SYMMETRIC,
    process_variables,
    tuner_csv,
    tuner_row,
)
from chorale.synth.errors import Unavailable
from chorale.synth.programs.library_call import LibrarySettings
from chorale.synth.programs.memory import BufferShape, Layout
from chorale.synth.programs.rounds import LocalStep, RankRounds

LOG, TABLE = "nccl.%p.log", "tuner.csv"
"""Names of files in the working folder. %p stands for the process id, because ranks may share the folder."""
_ROUNDS = TypeAdapter(RankRounds)
_RANKS = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")


@dataclass(frozen=True, slots=True)
class NcclPart:
    """The work of one rank in a measured call: either its part of a program, or a call of the library.

    rounds:    the rank's part of a program that Chorale executes; None for a call of the library
    settings:  the library's settings for its own call; None for the defaults
    program:   text of a program that the library itself executes; "" if there is none
    variables: environment variables that the process needs from its start, in addition to those for `settings`
    """

    layout: DataLayout
    settings: LibrarySettings | None = None
    rounds: RankRounds | None = None
    program: str = ""
    variables: tuple[tuple[str, str], ...] = ()

    @property
    def process(self) -> tuple[str, tuple[tuple[str, str], ...]]:
        """Return the program's text and the environment variables. The library reads both only once per process, so
        parts with different texts or variables need separate processes."""
        return self.program, tuple(sorted({**process_variables(self.settings), **dict(self.variables)}.items()))

    @property
    def is_symmetric(self) -> bool:
        return self.settings is not None and self.settings.algorithm == SYMMETRIC

    def to_json(self) -> dict[str, Any]:
        return {
            "layout": self.layout.to_json(),
            "settings": None if self.settings is None else self.settings.to_json(),
            "rounds": None if self.rounds is None else _ROUNDS.dump_python(self.rounds, mode="json"),
            "program": self.program,
        }

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> NcclPart:
        settings = None if value["settings"] is None else LibrarySettings.from_json(value["settings"])
        rounds = None if value["rounds"] is None else _ROUNDS.validate_python(value["rounds"])
        return NcclPart(DataLayout.from_json(value["layout"]), settings, rounds, value["program"])


class NcclParts:
    """Runs and times one rank's programs and library calls; the counterpart of `RankParts` for NCCL and RCCL.

    Each `LibrarySettings` has its own communicator, which is kept for later requests.

    seconds: mean time per call in the last run
    """

    def __init__(self, library: Nccl, device: RankDevice, rank: int, ranks: int, options: Mapping[str, Any]) -> None:
        self._library, self._device, self._options = library, device, options
        self._position, self._iterations = (rank, ranks), options["iterations"]
        self._communicators: dict[LibrarySettings | None, int] = {}
        self._configs: dict[LibrarySettings | None, Any] = {}
        self._parts: list[NcclPart] = []
        self._buffers: dict[bool, tuple[int, int, int]] = {}  # size and addresses of the checked and the timed memory
        self._current: tuple[NcclPart, RankMemory, Vector, str, int] | None = None
        self.blocked: list[StuckInstruction] = []
        self.seconds = 0.0
        self.steps: list[list[float]] = []  # calls on devices do not record their steps

    def load(self, documents: Iterable[Mapping[str, Any]], ids: Mapping[str, str]) -> None:
        """Replace the parts by those in `documents`. `ids` maps settings, as text, to ids of new communicators."""
        self._parts = [NcclPart.from_json(each) for each in documents]
        for part in self._parts:
            if (text := str(part.settings)) in ids and part.settings not in self._communicators:
                self._communicators[part.settings] = self._join(part, bytes.fromhex(ids[text]))

    def _join(self, part: NcclPart, unique_id: bytes) -> int:
        rank, ranks = self._position
        settings, by_call = part.settings, self._options["per_call"]
        if settings is not None and by_call:
            self._configs[settings] = self._library.call_config(settings)
        if part.program:
            Path(PROGRAM_FOLDER).mkdir(exist_ok=True)
            text = Path(f"{PROGRAM}.{os.getpid()}")
            text.write_text(part.program)
            text.replace(Path(PROGRAM_FOLDER) / PROGRAM)
        # The table has rows for all collectives, because later requests for other ones use this communicator too.
        names = () if settings is None or part.is_symmetric or by_call else ALGORITHMS[settings.algorithm].collectives
        rows = [tuner_row(each.value, settings, ranks) for each in sorted(names)] if settings is not None else []
        table = Path(TABLE).absolute()
        table.write_text(tuner_csv([row for row in rows if row is not None]))
        with environment(NCCL_TUNER_CONFIG_FILE=str(table)):
            return self._library.communicator(unique_id, rank, ranks, None if by_call else settings)

    def prepare(self, task: Mapping[str, Any]) -> None:
        """Create the data for `task`, a command from `prepare_task`."""
        self._current = None
        gc.collect()  # automatic garbage collection is off in this process
        part, elements, dtype = self._parts[task["program"]], task["elements"], task["dtype"]
        layout, cells, spare = part.layout, self._cells(part), 0 if part.rounds is None else part.rounds.spare_cells
        chunk = elements // layout.chunks
        flat = np.zeros((cells.cells + spare) * chunk, ELEMENT_TYPES[dtype].dtype)
        given = flat[cells.input_base * chunk :], flat[cells.output_base * chunk :]
        pattern = DataPattern(layout.ranks, task["run"], task["seed"], ELEMENT_TYPES[dtype].exact_limit)
        memory = RankMemory(layout, self._position[0], elements, dtype, pattern, given)
        checked, timed = self._memory(flat.nbytes, part)
        self._device.upload(checked, flat)
        self._device.upload(timed, np.zeros_like(flat))
        self._current = part, memory, flat, dtype, chunk

    def _cells(self, part: NcclPart) -> Layout:
        if part.rounds is not None:
            return part.rounds.layout
        layout = part.layout
        shape = BufferShape(layout.collective.name, layout.chunks, layout.ranks, layout.in_place)
        return shape.layout(self._position[0], 0)

    def _memory(self, size_bytes: int, part: NcclPart) -> tuple[int, int]:
        size, *addresses = self._buffers.get(part.is_symmetric, (0,))
        allocate, free = (
            (self._library.allocate, self._library.free)
            if part.is_symmetric
            else (self._device.allocate, self._device.free)
        )
        if size < size_bytes:
            for address in addresses:
                free(address)
            addresses = [allocate(size_bytes), allocate(size_bytes)]
            self._buffers[part.is_symmetric] = (size_bytes, addresses[0], addresses[1])
        return addresses[0], addresses[1]

    def run(self, _start_s: float, limit_s: float) -> float | None:
        """Make the checked call, which also synchronizes the ranks, then the timed calls.

        Return the end of the calls on the monotonic clock; None if nothing was prepared or `limit_s` was exceeded.
        """
        if self._current is None:
            return None
        part, _, flat, _, _ = self._current
        deadline = time.monotonic() + limit_s
        checked, timed = self._memory(flat.nbytes, part)
        size = self._buffers[part.is_symmetric][0]
        communicator = self._communicators[part.settings]
        with ExitStack() as stack:
            for address in (checked, timed):
                stack.enter_context(self._library.window(communicator, address, size, part.settings))
            if self._device.timed(lambda: self._call(checked), deadline - time.monotonic()) is None:
                return None

            def calls() -> None:
                for _ in range(self._iterations):
                    self._call(timed)

            as_graph = self._device.captured if self._options["cuda_graph"] else nullcontext
            work = stack.enter_context(as_graph(calls))
            elapsed_s = self._device.timed(work, deadline - time.monotonic())
        if elapsed_s is None:
            return None
        self.seconds = elapsed_s / self._iterations
        return time.monotonic()

    def _call(self, base: int) -> None:
        assert self._current is not None
        part, _, flat, dtype, chunk = self._current
        cells, step = self._cells(part), chunk * flat.itemsize
        communicator, stream = self._communicators[part.settings], self._device.stream
        if part.rounds is None:
            source, target = base + cells.input_base * step, base + cells.output_base * step
            ends = source, target, chunk * part.layout.chunks, part.layout.ranks
            config = self._configs.get(part.settings)
            self._library.collective(communicator, part.layout.collective, *ends, dtype, stream, config)
            return
        for turn in part.rounds.rounds:
            self._do(turn.local, base, step, chunk, dtype)
            if turn.sends or turn.receives:
                with self._library.group():
                    for peer, first, count in turn.receives:
                        self._library.receive(communicator, base + first * step, count * chunk, dtype, peer, stream)
                    for peer, first, count in turn.sends:
                        self._library.send(communicator, base + first * step, count * chunk, dtype, peer, stream)
        self._do(part.rounds.after, base, step, chunk, dtype)

    def _do(self, steps: Iterable[LocalStep], base: int, step: int, chunk: int, dtype: str) -> None:
        for target, left, right, count in steps:
            if right is None:
                self._device.copy(base + target * step, base + left * step, count * chunk, dtype)
            else:
                ends = (base + target * step, base + left * step, base + right * step)
                self._device.add(*ends, count * chunk, dtype)

    def complaint(self) -> str | None:
        """Return a line that describes the first wrong element of the checked call, or None if all are correct."""
        if self._current is None:
            return None
        part, memory, flat, _, _ = self._current
        self._device.download(flat, self._buffers[part.is_symmetric][1])
        return memory.mismatch()


class NcclRank(SocketRank[NcclParts]):
    """Executes the nccl runner's commands in the process of one rank, in addition to the commands of `SocketRank`.

    ids    number of new communicators             -> their ids (rank 0 only)
    load   the parts and the ids                   -> loaded
    log                                            -> lines logged since the last such command
    """

    def __init__(self, control: FramedSocket, library: Nccl, parts: NcclParts, rank: int) -> None:
        super().__init__(control, parts, ids=self._ids, load=self._load, log=self._log)
        self._nccl, self._rank, self._read_bytes = library, rank, 0

    def _ids(self, command: Message) -> Message:
        ids = [self._nccl.unique_id().hex() for _ in range(command["count"])] if self._rank == 0 else []
        return {"answer": "ids", "ids": ids}

    def _load(self, command: Message) -> Message:
        self._parts.load(command["part"], command["ids"])
        return {"answer": "loaded"}

    def _log(self, command: Message) -> Message:
        path = Path(LOG.replace("%p", str(os.getpid())))
        text = path.read_bytes()[self._read_bytes :] if path.exists() else b""
        self._read_bytes += len(text)
        return {"answer": "log", "lines": text.decode(errors="replace").splitlines()}


def main() -> None:
    """Run one rank. Command-line arguments: the runner's address, this rank (-1: the launcher sets it), number of ranks
    in total and per node, the library, the CUDA or HIP runtime, and `GpuRanksConfig.rank_options` as JSON.
    """
    meeting, rank, ranks, per_node, library, runtime, text = sys.argv[1:8]
    options = json.loads(text)
    number = int(rank) if int(rank) >= 0 else next(int(os.environ[name]) for name in _RANKS if name in os.environ)
    # Torch is loaded before this rank connects: it takes seconds, longer than the runner then waits for the hello.
    try:
        address = "127.0.0.1" if "/" in meeting else socket.getfqdn()
        loaded: tuple[Nccl, RankDevice] | Exception = _loaded(
            library, runtime, options, number % int(per_node), address
        )
    except Exception as error:  # `be_rank` reports it
        loaded = error
    control = meet_runner(meeting)

    def work() -> None:
        if isinstance(loaded, Exception):
            raise loaded
        nccl, device = loaded
        greet_runner(control, number, version=nccl.version_text, rccl=nccl.is_rccl, adds=device.adds)
        parts = NcclParts(nccl, device, number, int(ranks), options)
        NcclRank(control, nccl, parts, number).serve()

    be_rank(control, work)


def _loaded(library: str, runtime: str, options: Mapping[str, Any], gpu: int, address: str) -> tuple[Nccl, RankDevice]:
    path = find_library(library)
    nccl = Nccl(path)
    device: RankDevice = HostDevice()
    if options["memory"] == "gpu":
        prefix = "hip" if nccl.is_rccl else "cuda"
        device = GpuDevice(load_runtime(prefix, runtime or None), prefix, gpu)
    if options["torch"] is None:
        return nccl, device
    if not device.adds:
        raise Unavailable("PyTorch has no GPU, so it cannot call {}", path, "leave out the option `torch`")
    from chorale.runners.nccl.torch_calls import TorchNccl  # noqa: PLC0415 - torch takes seconds

    return TorchNccl(path, options["torch"], device, address), device


if __name__ == "__main__":
    main()
