"""A transport for engines in one process: messages as a library would pass them on, in the memory of the process."""

import ctypes
import threading
from collections import defaultdict, deque

_POST = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int)
_TEST = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


class _Table(ctypes.Structure):
    """chorale_messages of native/chorale_engine.h."""

    _fields_ = (("context", ctypes.c_void_p), ("post_send", _POST), ("post_receive", _POST), ("test", _TEST))


class Mailboxes:
    """What is on its way between all ranks, by sender, receiver and channel."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.messages: defaultdict[tuple[int, int, int], deque[bytes]] = defaultdict(deque)


class MessageTable:
    """The messages of one rank. A send is done at once, a receive when its message is there."""

    def __init__(self, rank: int, mailboxes: Mailboxes) -> None:
        self._rank, self._mailboxes = rank, mailboxes
        self._receives: dict[int, tuple[int, int, tuple[int, int, int]]] = {}
        self._queues: defaultdict[tuple[int, int, int], deque[int]] = defaultdict(deque)
        self._requests = 0
        self._sends: set[int] = set()
        self._table = _Table(None, _POST(self._post_send), _POST(self._post_receive), _TEST(self._test))

    @property
    def address(self) -> int:
        return ctypes.addressof(self._table)

    @property
    def open_requests(self) -> int:
        """How many requests nobody has seen the end of."""
        return len(self._sends) + len(self._receives)

    def _next_request(self) -> int:
        self._requests += 1
        return self._requests

    def _post_send(self, context: int, content: int, size: int, peer: int, channel: int) -> int:
        with self._mailboxes.lock:
            self._mailboxes.messages[self._rank, peer, channel].append(ctypes.string_at(content, size))
        request = self._next_request()
        self._sends.add(request)
        return request

    def _post_receive(self, context: int, content: int, size: int, peer: int, channel: int) -> int:
        request, key = self._next_request(), (peer, self._rank, channel)
        self._receives[request] = (content, size, key)
        self._queues[key].append(request)
        return request

    def _test(self, context: int, request: int) -> int:
        if request in self._sends:
            self._sends.remove(request)
            return 1
        content, size, key = self._receives[request]
        with self._mailboxes.lock:
            if self._queues[key][0] != request or not self._mailboxes.messages[key]:
                return 0
            message = self._mailboxes.messages[key].popleft()
        if len(message) != size:
            return -1
        ctypes.memmove(content, message, size)
        self._queues[key].popleft()
        del self._receives[request]
        return 1
