"""What runs inside a worker process of `ProcessExecutor`."""

from __future__ import annotations

import pickle
import signal
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any


@dataclass(frozen=True, slots=True)
class SharedValue:
    """Message to a worker: the shared value of the calls to come. There is no answer."""

    value: Any


@dataclass(frozen=True, slots=True)
class Call:
    """Message to a worker: answer with the Outcome of `function(shared, task)`."""

    function: Callable[[Any, Any], Any]
    task: Any


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """Answer of a worker: what the function returned, or the exception it raised."""

    value: Any = None
    error: BaseException | None = None


def serve(connection: Connection) -> None:
    """Answer calls until the parent closes its end or dies. Ctrl-C is left to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    shared: Any = None
    while True:
        try:
            message = connection.recv_bytes()
        except (EOFError, OSError):
            return
        content = _unpickled(message)
        if isinstance(content, SharedValue):
            shared = content.value
            continue
        answer = _answer(content, shared)
        try:
            connection.send_bytes(answer)
        except OSError:
            return


def pickled(value: Any) -> bytes:
    """Return `value` as bytes for the other end of a connection that both processes of this program hold."""
    return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)


def _unpickled(message: bytes) -> SharedValue | Call | CallOutcome:
    try:
        content: SharedValue | Call = pickle.loads(message)  # noqa: S301 (from our own parent process)
    except Exception as error:
        return CallOutcome(error=error)
    return content


def _answer(content: Call | CallOutcome, shared: Any) -> bytes:
    outcome = _called(content, shared) if isinstance(content, Call) else content
    try:
        answer = pickled(outcome)
        if outcome.error is not None:
            pickle.loads(answer)  # noqa: S301 (just made; some exceptions can be pickled but not rebuilt)
    except Exception as error:
        answer = pickled(CallOutcome(error=TypeError(f"the outcome of a task cannot be pickled: {error}")))
    return answer


def _called(call: Call, shared: Any) -> CallOutcome:
    try:
        return CallOutcome(call.function(shared, call.task))
    except BaseException as error:
        error.add_note(f"in a worker process:\n{traceback.format_exc()}")
        return CallOutcome(error=error)
