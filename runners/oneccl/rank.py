"""The program of a rank process of the oneccl runner. oneCCL's point-to-point calls carry the engine's messages."""

import ctypes
import os
import sys
import time
from pathlib import Path

import psutil

from chorale.runners.engine.library import DataType, Engine, Status
from chorale.runners.execution.rank_part import FramedSocket, Message, RankMemory, RankParts, SocketRank, be_rank
from chorale.runners.execution.started_ranks import greet_runner, meet_runner
from chorale.synth.collective import Collective, CollectiveName

STORE_BYTES = 4096
_PR_SET_TIMERSLACK = 29
LIBRARY, ENGINE = "libchorale_oneccl.so", "libchorale_engine.so"
"""Names of the libraries in the working folder."""


class OneCcl:
    """Calls oneCCL through native/oneccl.cpp. After `join`, the C struct chorale_messages is at `address`."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        self._library.chorale_oneccl_error.restype = ctypes.c_char_p
        self._library.chorale_oneccl_join.restype = ctypes.c_void_p
        self._library.chorale_oneccl_join.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t)
        self._library.chorale_oneccl_messages.restype = ctypes.c_void_p
        self._library.chorale_oneccl_messages.argtypes = (ctypes.c_void_p,)
        self._library.chorale_oneccl_collective.argtypes = (
            *(ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p),
            *(ctypes.c_size_t, ctypes.c_double),
        )
        self._joined: int | None = None
        self._rank = 0
        self.address = 0

    def store(self) -> bytes:
        """Open the key-value store through which ranks find one another; return its address for all ranks."""
        address = ctypes.create_string_buffer(STORE_BYTES)
        self._check(self._library.chorale_oneccl_store(address, STORE_BYTES))
        return address.raw

    def join(self, rank: int, ranks: int, store: bytes, channels: int) -> None:
        """Connect to the other ranks, with `channels` message channels; all ranks call this together."""
        self._rank = rank
        self._joined = self._library.chorale_oneccl_join(rank, ranks, store, channels)
        self._check(Status.OK if self._joined else Status.SYSTEM)
        self.address = self._library.chorale_oneccl_messages(self._joined)

    def collective(self, _: int, collective: Collective, memory: RankMemory, start_s: float, limit_s: float) -> None:
        """Run oneCCL's own collective. This process's environment variables select the algorithm for the size."""
        source, target, root = memory.input, memory.output, collective.root or 0
        elements = max(len(source), len(target))
        if collective.name is CollectiveName.BROADCAST and self._rank == root:
            target[:] = source  # oneCCL's broadcast has only one buffer
        time.sleep(max(0.0, start_s - time.monotonic()))
        status = self._library.chorale_oneccl_collective(
            *(self._joined, collective.name.value.encode(), root, DataType[source.dtype.name.upper()]),
            *(source.ctypes.data, target.ctypes.data, elements, limit_s),
        )
        if status == Status.TIMEOUT:
            raise TimeoutError
        self._check(status)

    def _check(self, status: int) -> None:
        if status != Status.OK:
            raise RuntimeError(self._library.chorale_oneccl_error().decode(errors="replace"))


class OneCclRank(SocketRank[RankParts]):
    """Executes the oneccl runner's commands in one rank. The command `load` has its parts and the store's address."""

    def __init__(self, control: FramedSocket, rank: int, ranks: int, oneccl: OneCcl) -> None:
        self._engine, self._oneccl = Engine(rank, ranks, Path(ENGINE)), oneccl
        super().__init__(control, RankParts(self._engine, rank, oneccl.collective), load=self._load)
        self._position = rank, ranks

    def _load(self, command: Message) -> Message:
        self._oneccl.join(*self._position, bytes.fromhex(command["store"]), command["channels"])
        self._engine.use_messages(self._oneccl.address)
        self._parts.load(command["part"])
        return {"answer": "loaded"}


def main() -> None:
    """Run one rank. Command-line arguments: the runner's address, this rank, number of ranks, and the rank's IP
    address. The variable CHORALE_TOKEN contains the token by which the runner recognizes this rank.
    """
    meeting, rank, ranks, address = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    control = meet_runner(meeting)

    def work() -> None:
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1000)  # nanoseconds: calls must start within a microsecond
        addresses = psutil.net_if_addrs().items()
        device = next((name for name, entries in addresses if any(one.address == address for one in entries)), None)
        if device is None:
            raise RuntimeError(f"no network interface has the address {address}")
        os.environ |= {"FI_TCP_IFACE": device, "CCL_KVS_IFACE": device}
        oneccl = OneCcl(Path.cwd() / LIBRARY)
        greet_runner(control, rank, store=oneccl.store().hex() if rank == 0 else "")
        OneCclRank(control, rank, ranks, oneccl).serve()

    be_rank(control, work)


if __name__ == "__main__":
    main()
