"""Connections on which bytes are changed, lost, added or held back: a right result or an error in time."""

import ctypes
import random
import select
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from chorale.runners.engine.library import DataType, Engine, EngineError, ReduceOp, Work, encode_rank
from chorale.synth.collective import CollectiveName
from chorale.synth.programs.program import Program
from tests.unit.synth.lowering.programs import block, program, step


def check(count: int, seed: int) -> None:
    found = random_trials(count, seed)
    assert not [ends for ends in found if {"WRONG", "LATE", ""} & set(ends)], found
    assert found["nothing", "OK", "OK"] == count // 8
    assert not any(kind in ("cut", "stall") and "OK" in (first, second) for kind, first, second in found), found
    assert any(first == "GARBAGE" for _, first, _ in found)


def test_no_meddling_leads_to_a_wrong_result() -> None:
    check(48, 5)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_meddling_leads_to_a_wrong_result_in_many_trials() -> None:
    check(1600, 6)


MESSAGES = 3
CHUNK_ELEMENTS = 97
LIMIT_S = 0.5
MARGIN_S = 1.0
HELLO_BYTES = 40


KINDS = ("flip", "drop", "insert", "repeat", "cut", "stall", "garbage", "nothing")


class Meddler:
    """Listens like rank 0, passes on to the real one, and meddles once `after` bytes went that way.

    kind: flip a bit, drop a byte, insert some, repeat some, cut the connection, stall for good, only garbage from then
    on, or nothing
    """

    def __init__(self, rank_0: str, kind: str, after: int, seed: int) -> None:
        self._rank_0, self._kind, self._after = rank_0, kind, after
        self._random = random.Random(seed)
        self._passed, self._has_meddled, self._is_over = 0, False, False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp:127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        self._is_over = True
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        self._listener.settimeout(0.05)
        while not self._is_over:
            try:
                caller, _ = self._listener.accept()
            except TimeoutError:
                continue
            host, _, port = self._rank_0.removeprefix("tcp:").rpartition(":")
            try:
                with caller, socket.create_connection((host, int(port))) as target:
                    self._pass_on(caller, target)
            except OSError:
                continue  # one of the two hung up, which is what is tested

    def _pass_on(self, caller: socket.socket, target: socket.socket) -> None:
        while not self._is_over:
            for source in select.select([caller, target], [], [], 0.05)[0]:
                data = source.recv(65536)
                if not data:
                    return
                if source is caller:
                    data = self._meddle(data)
                    target.sendall(data)
                    if self._kind == "cut" and self._has_meddled:
                        return
                else:
                    caller.sendall(data)
            if self._kind == "stall" and self._has_meddled:
                self._until_over()

    def _until_over(self) -> None:
        while not self._is_over:
            time.sleep(0.01)

    def _meddle(self, data: bytes) -> bytes:
        at = self._after - self._passed
        self._passed += len(data)
        if self._has_meddled:
            return self._random.randbytes(len(data)) if self._kind == "garbage" else data
        if not 0 <= at < len(data) or self._kind == "nothing":
            return data
        self._has_meddled = True
        return data[:at] + self._changes()[self._kind](data[at:])

    def _changes(self) -> dict[str, Callable[[bytes], bytes]]:
        return {
            "flip": lambda data: bytes([data[0] ^ 1 << self._random.randrange(8)]) + data[1:],
            "drop": lambda data: data[1:],
            "insert": lambda data: self._random.randbytes(self._random.randrange(1, 9)) + data,
            "repeat": lambda data: data[: self._random.randrange(1, 65)] + data,
            "cut": lambda data: b"",
            "stall": lambda data: b"",
            "garbage": lambda data: self._random.randbytes(len(data)),
        }


def there_and_back() -> Program:
    """Rank 1 sends all its chunks, rank 0 adds them to its own and sends the sums back."""
    chunks = range(MESSAGES)
    return program(
        CollectiveName.ALLREDUCE,
        MESSAGES,
        [
            block(None, 1, *(step("rrc", f"i{chunk}", f"o{chunk}") for chunk in chunks)),
            block(1, None, *(step("s", f"o{chunk}", waits=[(0, chunk)]) for chunk in chunks)),
        ],
        [
            block(0, None, *(step("s", f"i{chunk}") for chunk in chunks)),
            block(None, 0, *(step("r", f"o{chunk}", waits=[(0, chunk)]) for chunk in chunks)),
        ],
    )


def trial(kind: str, after: int, seed: int) -> list[str]:
    """Return how the ranks ended: OK, the name of a status, or what must not be."""
    engines, made = [Engine(rank, 2) for rank in range(2)], there_and_back()
    numbers = [
        engine.load(encode_rank(made.collective, 2, made.chunks, made.in_place, 2, part))
        for engine, part in zip(engines, made.ranks, strict=True)
    ]
    addresses = [engine.listen("tcp:127.0.0.1") for engine in engines]
    meddler = Meddler(addresses[0], kind, after, seed)
    ends = ["", ""]

    def be(rank: int) -> None:
        reached = [addresses[0] if rank == 0 else meddler.address, addresses[1]]
        ends[rank] = _outcome(engines[rank], reached, numbers[rank])
        if ends[rank] != "OK":
            engines[rank].close()

    threads = [threading.Thread(target=be, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    meddler.close()
    for engine in engines:
        engine.close()
    return ends


def _outcome(engine: Engine, addresses: Sequence[str], number: int) -> str:
    elements = MESSAGES * CHUNK_ELEMENTS
    started_s = time.monotonic()
    try:
        engine.connect(addresses, bytes(range(16)), LIMIT_S)
        for turn in range(2):
            data = (ctypes.c_int64 * elements)(*range(turn, elements + turn))
            address = ctypes.addressof(data)
            started_s = time.monotonic()
            engine.execute(Work(number, address, address, elements, DataType.INT64, ReduceOp.SUM, 1, LIMIT_S))
            if list(data) != [2 * value for value in range(turn, elements + turn)]:
                return "WRONG"
    except EngineError as error:
        return error.status.name if time.monotonic() - started_s < LIMIT_S + MARGIN_S else "LATE"
    return "OK"


def random_trials(count: int, seed: int) -> Counter[tuple[str, str, str]]:
    """Return how often what kind of meddling ended how at both ranks."""
    draw = random.Random(seed)
    found: Counter[tuple[str, str, str]] = Counter()
    run_bytes = MESSAGES * (CHUNK_ELEMENTS * 8 + 20)
    for turn in range(count):
        kind = KINDS[turn % len(KINDS)]
        after = draw.randrange(HELLO_BYTES) if draw.random() < 0.1 else draw.randrange(HELLO_BYTES, 2 * run_bytes + 40)
        first, second = trial(kind, after, draw.randrange(2**32))
        found[kind, first, second] += 1
    return found
