"""Calls the engine, a C++ library that is built at first use and loaded with ctypes.

native/chorale_engine.h defines the C interface. Calls release Python's global interpreter lock.
"""

from __future__ import annotations

import ctypes
import os
import secrets
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import IntEnum
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from chorale.runners.engine.build import NativeTarget, build_native
from chorale.synth.collective import Collective, CollectiveName
from chorale.synth.errors import InvalidInput
from chorale.synth.programs.program import RankProgram

_VERSION = 1
_COLLECTIVES = tuple(CollectiveName)[: 1 + tuple(CollectiveName).index(CollectiveName.ALLTOALL)]
"""Collectives that the engine knows. Their positions are the numbers that the engine uses for them."""
TOKEN_BYTES = 16
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NETWORK = Path("/proc/self/ns/net")
TORCH_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
MPI_VARIABLES = ("OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_btl_tcp_if_exclude", "FI_TCP_IFACE", "UCX_NET_DEVICES")


def encode_rank(
    collective: Collective, ranks: int, chunks: int, in_place: bool, depth: int, part: RankProgram
) -> array[int]:
    """Encode one rank's part of a program as 64-bit integers for the engine.

    depth: number of messages that a connection's queue holds
    """
    # The engine only executes instructions, so a custom collective is encoded as allreduce, which has the same buffers.
    is_custom = collective.name == CollectiveName.CUSTOM
    known = _COLLECTIVES.index(CollectiveName.ALLREDUCE if is_custom else collective.name)
    root = -1 if collective.root is None else collective.root
    columns = part.columns
    words = array("q", [_VERSION, known, root, ranks, chunks, int(in_place)])
    words.extend((part.scratch_chunks, depth, columns.blocks))
    # The engine's numbers for instructions, buffers and a missing peer are those of OPS, BUFFERS and NO_PEER.
    places = (columns.src_buffer, columns.src_offset, columns.dst_buffer, columns.dst_offset)
    items = np.stack([columns.op, *places, columns.count, columns.waits], axis=1).tolist()
    waits = np.stack([columns.wait_block, columns.wait_step], axis=1).ravel().tolist()
    first, first_wait = columns.first.tolist(), (2 * columns.first_wait).tolist()
    blocks = np.stack([columns.send_peer, columns.recv_peer, columns.channel, columns.lengths], axis=1).tolist()
    for block, (begin, end) in zip(blocks, pairwise(first), strict=True):
        words.extend(block)
        for item in range(begin, end):
            words.extend((*items[item], *waits[first_wait[item] : first_wait[item + 1]]))
    return words


NATIVE = Path(__file__).parent / "native"
_LIBRARY = "libchorale_engine.so"


class Status(IntEnum):
    """The engine's result codes; see native/chorale_engine.h."""

    OK = 0
    INVALID = 1
    TIMEOUT = 2
    PEER_LOST = 3
    GARBAGE = 4
    SYSTEM = 5


class DataType(IntEnum):
    """The element types, named as in NumPy and torch. Plans support the types up to UINT8. FLOAT128 is long double."""

    FLOAT32 = 0
    FLOAT64 = 1
    FLOAT16 = 2
    BFLOAT16 = 3
    INT32 = 4
    INT64 = 5
    INT8 = 6
    UINT8 = 7
    INT16 = 8
    UINT16 = 9
    UINT32 = 10
    UINT64 = 11
    FLOAT128 = 12


class ReduceOp(IntEnum):
    """The operations that combine ranks' elements. AVG divides the sum, rounding towards zero for integers."""

    SUM = 0
    AVG = 1
    MIN = 2
    MAX = 3
    PROD = 4


class EngineError(Exception):
    """Raised if a call to the engine failed.

    status:  kind of failure
    blocked: after a timeout, one line per unfinished block, with block, instruction and what the block is waiting for
    """

    def __init__(self, status: Status, message: str, blocked: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.blocked = blocked


class StepTime(ctypes.Structure):
    """Records when an instruction ran, in nanoseconds of CLOCK_MONOTONIC.

    ready_ns: when everything that the instruction waits for had happened
    start_ns: when its first byte moved; 0 if no byte moved
    end_ns:   when it finished
    """

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("block", "step", "part", "piece")),
        *((name, ctypes.c_int64) for name in ("ready_ns", "start_ns", "end_ns")),
    )


class _Call(ctypes.Structure):
    _fields_ = (
        ("program", ctypes.c_int64),
        ("input", ctypes.c_void_p),
        ("output", ctypes.c_void_p),
        ("elements", ctypes.c_size_t),
        ("type", ctypes.c_int32),
        ("operation", ctypes.c_int32),
        ("parts", ctypes.c_size_t),
        ("limit_s", ctypes.c_double),
        ("not_before_ns", ctypes.c_int64),
        ("steps", ctypes.POINTER(StepTime)),
        ("step_room", ctypes.c_size_t),
        ("step_count", ctypes.c_size_t),
        ("start_ns", ctypes.c_int64),
        ("end_ns", ctypes.c_int64),
    )


@dataclass(frozen=True, slots=True)
class Execution:
    """Records when a program's execution ended on this rank (ns of CLOCK_MONOTONIC), and the times of its steps."""

    end_ns: int
    steps: tuple[StepTime, ...] = ()


@dataclass(frozen=True, slots=True)
class Work:
    """The arguments of `Engine.execute`: which program to run, on which data and with which limits.

    program:  number of the program, as returned by `Engine.load`
    input, output: addresses of the rank's data
    elements: number of elements in the whole vector, such as an allgather's output or a reduce-scatter's input
    parts:    number of parts into which chunks are cut; blocks run their instructions once per part
    type, operation: type of the elements, and how reductions combine them
    limit_s:  time limit in seconds, counted from the start of the execution
    not_before_ns: start time in ns of CLOCK_MONOTONIC; 0 to start immediately
    step_room: number of instructions whose times can be recorded
    """

    program: int
    input: int
    output: int
    elements: int
    type: DataType = DataType.FLOAT32
    operation: ReduceOp = ReduceOp.SUM
    parts: int = 1
    limit_s: float = 60.0
    not_before_ns: int = 0
    step_room: int = 0


class Engine:
    """Executes one rank's programs. Not thread-safe; native/chorale_engine.h describes all rules for its use."""

    def __init__(self, rank: int, ranks: int, library: Path | None = None) -> None:
        self._library = load_library(library or engine_library())
        self._open = self._library.chorale_engine_new(rank, ranks)
        self._ranks = ranks
        if not self._open:
            raise InvalidInput("there is no rank {}", f"{rank} of {ranks}", "number them from 0")

    def close(self) -> None:
        """End all connections. Safe to call twice."""
        engine, self._open = self._open, None
        if engine:
            self._library.chorale_engine_free(engine)

    @property
    def _engine(self) -> int:
        if not self._open:
            raise InvalidInput("the engine was closed and cannot run {}", "a call", "create another engine")
        return int(self._open)

    def set(self, option: str, value: int) -> None:
        """Set an option of the engine: piece_bytes, buffer_bytes or listening; see native/chorale_engine.h."""
        self._check(self._library.chorale_set(self._engine, option.encode(), value))

    def load(self, words: array[int]) -> int:
        """Load the program in `words` (from `encode_rank`); return its number. Raises EngineError if it is not a valid
        program.
        """
        buffer = (ctypes.c_int64 * len(words)).from_buffer(words)
        number = int(self._library.chorale_program_load(self._engine, buffer, len(words)))
        if number < 0:
            raise EngineError(Status.INVALID, self._message())
        return number

    def unload(self, program: int) -> None:
        self._check(self._library.chorale_program_unload(self._engine, program))

    def listen(self, address: str) -> str:
        """Listen for other ranks at `tcp:HOST`, `unix:NAME` or `shm:NAME`; return the address to give to them."""
        bound = ctypes.create_string_buffer(256)
        self._check(self._library.chorale_listen(self._engine, address.encode(), bound, len(bound)))
        return bound.value.decode()

    def listen_devices(self, devices: Devices) -> str:
        """Listen on TCP at `devices`; return the addresses for other ranks. Raises InvalidInput if no device exists."""
        bound = ctypes.create_string_buffer(4096)
        texts = (devices.chosen or "", ",".join(devices.variables), devices.toward or "")
        arguments = (*(text.encode() for text in texts), bound, len(bound))
        status = self._library.chorale_listen_devices(self._engine, *arguments)
        if status == Status.INVALID:
            rule = "no network device reaches the other ranks: {}"
            raise InvalidInput(rule, self._message(), "set CHORALE_INTERFACE to such a device, or to none")
        self._check(status)
        return bound.value.decode()

    def connect(self, addresses: Sequence[str], token: bytes, limit_s: float) -> None:
        """Make the connections that the loaded programs need; all ranks call this at the same time.

        addresses: addresses of all ranks, as returned by `listen` on each rank
        token:     16 bytes that only the ranks of the job know
        """
        if len(addresses) != self._ranks or len(token) != 16:
            raise InvalidInput(
                "a job needs an address for each rank and a token of 16 bytes", len(addresses), "pass both"
            )
        texts = (ctypes.c_char_p * len(addresses))(*(address.encode() for address in addresses))
        key = (ctypes.c_uint8 * 16).from_buffer_copy(token)
        self._check(self._library.chorale_connect(self._engine, texts, key, limit_s))

    def use_messages(self, messages: int) -> None:
        """Exchange messages through the caller's functions from now on, instead of the engine's own connections.

        messages: address of a C struct chorale_messages; the object to which its context points must outlive the engine
        """
        self._check(self._library.chorale_use_messages(self._engine, messages))

    def execute(self, work: Work) -> Execution:
        """Execute a program once, together with all other ranks, which execute the same programs in the same order.

        Raises EngineError if this fails. Unless the error's status is INVALID, the engine cannot be used any more.
        """
        steps = (StepTime * work.step_room)() if work.step_room else None
        call = _Call(**asdict(work), steps=steps)
        self._check(self._library.chorale_execute(self._engine, ctypes.byref(call)))
        times = () if steps is None else tuple(steps[: min(call.step_count, work.step_room)])
        return Execution(call.end_ns, times)

    def _check(self, status: int) -> None:
        if status != Status.OK:
            raise EngineError(Status(status), self._message(), self._library.chorale_blocked(self._engine).decode())

    def _message(self) -> str:
        return str(self._library.chorale_error(self._engine).decode(errors="replace"))


def engine_library() -> Path:
    """Return the path of the library; build it first if necessary. Raises Unavailable without a compiler."""
    return build_native(engine_target())


def engine_target() -> NativeTarget:
    return NativeTarget(_LIBRARY, tuple(sorted(NATIVE.glob("*.cpp"))), ("-O3", "-shared", "-fPIC"))


def network_target() -> NativeTarget:
    """Return the build target of the program that emulates the local runner's network."""
    sources = (NATIVE.parents[1] / "fabric" / "native" / "network.cpp", NATIVE / "sockets.cpp")
    return NativeTarget("chorale_network", sources, includes=(NATIVE,))


@cache
def load_library(path: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(path))
    pointer, text, number, size = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int64, ctypes.c_size_t
    signatures = {
        "chorale_engine_new": (pointer, (ctypes.c_int, ctypes.c_int)),
        "chorale_engine_free": (None, (pointer,)),
        "chorale_error": (text, (pointer,)),
        "chorale_blocked": (text, (pointer,)),
        "chorale_program_load": (number, (pointer, pointer, size)),
        "chorale_program_unload": (ctypes.c_int, (pointer, number)),
        "chorale_listen": (ctypes.c_int, (pointer, text, text, size)),
        "chorale_listen_devices": (ctypes.c_int, (pointer, text, text, text, text, size)),
        "chorale_connect": (ctypes.c_int, (pointer, ctypes.POINTER(text), pointer, ctypes.c_double)),
        "chorale_use_messages": (ctypes.c_int, (pointer, pointer)),
        "chorale_set": (ctypes.c_int, (pointer, text, number)),
        "chorale_on_step": (None, (pointer, pointer, pointer)),
        "chorale_execute": (ctypes.c_int, (pointer, pointer)),
        "chorale_reduce": (ctypes.c_int, (ctypes.c_int32, ctypes.c_int32, pointer, pointer, pointer, size)),
    }
    declare(library, signatures)
    return library


def declare(library: ctypes.CDLL, signatures: Mapping[str, tuple[Any, Any]]) -> None:
    """Declare the types of functions in `library`, given as name -> (type of the result, types of the arguments)."""
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments


@dataclass(frozen=True, slots=True)
class Devices:
    """Says how to choose the network devices through which other ranks reach this one; see `links_for` in devices.hpp.

    chosen:    devices to use, or None
    variables: names of environment variables that may list devices, read if `chosen` is None
    toward:    host that must be reachable through the device; used if neither `chosen` nor a variable lists a device
    """

    chosen: str | None = None
    variables: tuple[str, ...] = ()
    toward: str | None = None


def listen(engine: Engine, devices: Devices = Devices()) -> list[str]:
    """Make `engine` listen. Return what other ranks need: an id of this network, a shared-memory and a TCP address.

    Raises InvalidInput for devices that do not exist, and EngineError if the engine cannot listen.
    """
    name = f"shm:chorale-{os.getpid()}-{secrets.token_hex(8)}"
    # Equal on two ranks if they can use shared memory: same machine and same (possibly emulated) network.
    network = f"{_BOOT_ID.read_text().strip()} {os.readlink(_NETWORK)}"
    return [network, engine.listen(name), engine.listen_devices(devices)]


def addresses_for(said: Sequence[str], of_all: Sequence[Sequence[str]]) -> list[str]:
    """Return the addresses at which one rank reaches all ranks: in shared memory if possible, else over TCP.

    said:   what `listen` returned on that rank
    of_all: what `listen` returned on each rank
    """
    return [shared if network == said[0] else tcp for network, shared, tcp in of_all]
