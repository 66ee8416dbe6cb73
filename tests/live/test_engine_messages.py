"""The engine over somebody else's messages: here queues of this process, with a thread for each rank."""

import ctypes
import threading
from collections import defaultdict, deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from chorale.runners.engine.library import Engine, Work, encode_rank, engine_library
from tests.conformance.example_programs import ring_allreduce

PAIR = ring_allreduce(range(2))
ELEMENTS = 1002

_POST = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int)
_TEST = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


class _Messages(ctypes.Structure):
    _fields_ = (("context", ctypes.c_void_p), ("post_send", _POST), ("post_receive", _POST), ("test", _TEST))


class Library:
    """Passes messages on in order; a send is done once the other side has the message."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.queues: dict[tuple[int, int, int], deque[tuple[int, bytes]]] = defaultdict(deque)
        self.waiting: dict[tuple[int, int, int], deque[int]] = defaultdict(deque)
        self.targets: dict[int, tuple[tuple[int, int, int], int, int]] = {}
        self.unsent: set[int] = set()
        self.outstanding: set[int] = set()
        self.numbers = iter(range(1, 10**6))

    def of_rank(self, rank: int) -> _Messages:
        def send(_: int, address: int, size: int, peer: int, channel: int) -> int:
            with self.lock:
                number = next(self.numbers)
                self.queues[rank, peer, channel].append((number, ctypes.string_at(address, size)))
                self.unsent.add(number)
                self.outstanding.add(number)
                return number

        def receive(_: int, address: int, size: int, peer: int, channel: int) -> int:
            with self.lock:
                number = next(self.numbers)
                self.waiting[peer, rank, channel].append(number)
                self.targets[number] = (peer, rank, channel), address, size
                self.outstanding.add(number)
                return number

        def test(_: int, number: int) -> int:
            with self.lock:
                is_done = self._receives(number) if number in self.targets else number not in self.unsent
                self.outstanding -= {number} if is_done else set()
                return int(is_done)

        return _Messages(None, _POST(send), _POST(receive), _TEST(test))

    def _receives(self, number: int) -> bool:
        key, address, size = self.targets[number]
        if self.waiting[key][0] != number or not self.queues[key]:
            return False
        sent, content = self.queues[key].popleft()
        assert len(content) == size
        ctypes.memmove(address, content, size)
        self.waiting[key].popleft()
        self.unsent.discard(sent)
        return True


def _sums(rank: int, messages: _Messages, depths: Sequence[int], path: Path) -> list[float]:
    engine = Engine(rank, 2, path)
    engine._library.chorale_use_messages(engine._engine, ctypes.byref(messages))
    sums = []
    for depth in depths:
        part = PAIR.ranks[rank]
        program = engine.load(encode_rank(PAIR.collective, 2, PAIR.chunks, PAIR.in_place, depth, part))
        vector = np.arange(ELEMENTS, dtype=np.float32) * (rank + 1)
        engine.execute(Work(program, vector.ctypes.data, vector.ctypes.data, ELEMENTS, limit_s=20))
        sums.append(float(np.abs(vector - 3 * np.arange(ELEMENTS)).max()))
    engine.close()
    return sums


def test_a_program_may_follow_one_with_a_longer_queue() -> None:
    path, library = engine_library(), Library()
    messages = [library.of_rank(rank) for rank in range(2)]
    with ThreadPoolExecutor(2) as threads:
        ranks = [threads.submit(_sums, rank, messages[rank], (3, 2, 5, 1), path) for rank in range(2)]
        assert [rank.result(60) for rank in ranks] == [[0.0] * 4] * 2
    assert not library.outstanding
