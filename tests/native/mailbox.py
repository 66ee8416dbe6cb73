"""A transport of messages within this process, for engines whose ranks are threads."""

import ctypes
from functools import cache
from pathlib import Path

from chorale.runners.engine.build import NativeTarget, build_native
from chorale.runners.engine.library import NATIVE


class Messages(ctypes.Structure):
    """The `chorale_messages` of native/chorale_engine.h."""

    _fields_ = tuple((name, ctypes.c_void_p) for name in ("context", "post_send", "post_receive", "test"))


@cache
def _library() -> ctypes.CDLL:
    sources = (Path(__file__).parent / "mailbox.cpp",)
    target = NativeTarget("libmailbox.so", sources, ("-shared", "-fPIC"), (NATIVE,))
    library = ctypes.CDLL(str(build_native(target)))
    library.mailbox_new.restype = ctypes.c_void_p
    library.mailbox_free.argtypes = library.mailbox_open_requests.argtypes = (ctypes.c_void_p,)
    library.mailbox_messages.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.POINTER(Messages))
    return library


class Mailbox:
    """Messages between ranks; `waits_for_receivers`: sends are done when they were received, not at once."""

    def __init__(self, ranks: int, waits_for_receivers: bool) -> None:
        self._box = _library().mailbox_new(ranks, int(waits_for_receivers))

    def messages(self, rank: int) -> Messages:
        messages = Messages()
        _library().mailbox_messages(self._box, rank, ctypes.byref(messages))
        return messages

    def open_requests(self) -> int:
        """Return how many requests nobody has seen the end of."""
        return int(_library().mailbox_open_requests(self._box))

    def close(self) -> None:
        _library().mailbox_free(self._box)
