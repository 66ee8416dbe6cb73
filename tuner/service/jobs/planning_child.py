"""The process of `PlanningProcesses`: calls functions of this package, one after the other, within its memory."""

from __future__ import annotations

import importlib
import os
import pickle
import resource
import sys
from typing import Any, BinaryIO

from chorale.synth.errors import ChoraleError
from chorale.tuner.service.jobs.planning import ERRORS, HEADER

PACKAGE = "chorale."
BASE_BYTES = 2**30
"""Private memory, reserved or used, of a process with everything imported."""


def serve(calls: BinaryIO, replies: BinaryIO) -> None:
    """Answer calls until there are no more, or one of them ran out of memory."""
    while header := calls.read(HEADER.size):
        (length,) = HEADER.unpack(header)
        module, name, arguments = pickle.loads(calls.read(length))  # noqa: S301  # of the service itself
        reply = reply_to(module, name, arguments)
        try:
            content = pickle.dumps(reply)
        except MemoryError:
            reply = ("memory", None)
            content = pickle.dumps(reply)
        replies.write(HEADER.pack(len(content)) + content)
        replies.flush()
        if reply[0] == "memory":
            return


def reply_to(module: str, name: str, arguments: tuple[Any, ...]) -> tuple[str, Any]:
    """Return ("value", what the function returns), or the name of an error and its arguments."""
    try:
        if not module.startswith(PACKAGE):
            raise ValueError(module)
        function = importlib.import_module(module)
        for part in name.split("."):
            function = getattr(function, part)
        return "value", function(*arguments)  # type: ignore[operator]
    except MemoryError:
        return "memory", None
    except ChoraleError as error:
        kind = next((name for name, kind in ERRORS.items() if isinstance(error, kind)), "CheckFailed")
        return kind, (error.rule, str(error.value), error.way_out)
    except Exception as error:  # a bug costs this call
        return "crash", f"{type(error).__name__}: {error}"


def main() -> None:
    """Limit this process, then serve its standard input; what is printed goes to standard error."""
    limit_bytes = BASE_BYTES + int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    calls, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    serve(calls, replies)


if __name__ == "__main__":
    main()
