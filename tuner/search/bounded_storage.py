"""A storage of Optuna's that is waited for no longer than so many seconds.

Drivers of databases wait without end for a server that is stopped but whose connections stand.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Any

from optuna.storages import BaseStorage

ANSWER_S = 8.0

_METHODS = [name for name, member in vars(BaseStorage).items() if callable(member) and not name.startswith("_")]


def bounded_storage(open_storage: Callable[[], BaseStorage], limit_s: float = ANSWER_S) -> BaseStorage:
    """Return what `open_storage` returns, behind a thread of its own in which alone it is used.

    A call, `open_storage` too, that takes longer than `limit_s` raises TimeoutError, and so does every later one at
    once: the thread still waits. It does not keep the process from ending.
    """
    thread = _Thread(limit_s)
    storage: BaseStorage = thread.call(open_storage)
    methods = {name: _through(thread, getattr(storage, name)) for name in _METHODS}
    bounded: BaseStorage = type("BoundedStorage", (BaseStorage,), methods)()
    return bounded


def _through(thread: _Thread, method: Callable[..., Any]) -> Callable[..., Any]:
    def call(_self: BaseStorage, *arguments: Any, **options: Any) -> Any:
        return thread.call(partial(method, *arguments, **options))

    return call


class _Thread:
    """Calls functions one after the other."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._is_stuck = False
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()
        threading.Thread(target=self._run, name="optuna storage", daemon=True).start()

    def call(self, function: Callable[[], Any]) -> Any:
        future: Future[Any] = Future()
        if not self._is_stuck:
            self._calls.put((future, function))
        try:
            return future.result(0.0 if self._is_stuck else self._limit_s)
        except TimeoutError:
            self._is_stuck = self._is_stuck or not future.done()
            raise TimeoutError(f"no answer within {self._limit_s:g} s") from None

    def _run(self) -> None:
        while True:
            future, function = self._calls.get()
            try:
                future.set_result(function())
            except BaseException as error:  # it belongs to whoever called
                future.set_exception(error)
