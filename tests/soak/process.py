"""A process of a campaign as its tester sees it: what it prints, the events that it reports, how it ends."""

import json
import os
import selectors
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.soak.launches import in_a_fork

ROOT = Path(__file__).parents[2]
POLL_S = 0.01
LINE = b"\n"


class Process:
    """Runs `chorale WORDS` on the data folder `home`, in a fork.

    Its output goes through pipes, which limits of file sizes do not reach. Events are appended to the file `history`.
    """

    def __init__(self, words: list[str], home: Path, history: Path) -> None:
        self.words = words
        self.events = 0
        self.code: int | None = None
        self._history = history
        self._texts = {"out": bytearray(), "errors": bytearray(), "events": bytearray()}
        self._selector = selectors.DefaultSelector()
        writers = []
        for name in self._texts:
            reader, writer = os.pipe()
            os.set_blocking(reader, False)
            self._selector.register(reader, selectors.EVENT_READ, name)
            writers.append(writer)
        self.pid = in_a_fork(words, home, (writers[0], writers[1], writers[2]))
        for writer in writers:
            os.close(writer)

    def until(self, condition: Callable[[], bool], limit_s: float) -> None:
        """Read what it says until `condition` holds or it has ended. TimeoutError after `limit_s`."""
        deadline_s = time.monotonic() + limit_s
        while not condition() and self.code is None:
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{self.words} takes more than {limit_s:g} s; {self.errors[-500:]}")
            self._read(POLL_S)
            self._look()

    def wait(self, limit_s: float) -> int:
        """Return its exit code, negative for a signal. TimeoutError after `limit_s`."""
        self.until(lambda: False, limit_s)
        assert self.code is not None
        return self.code

    def signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.code is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it, whatever state it is in, and wait for that."""
        if self.code is None:
            os.killpg(self.pid, signal.SIGKILL)
            os.kill(self.pid, signal.SIGKILL)
            self.wait(30.0)

    @property
    def out(self) -> str:
        return self._texts["out"].decode(errors="replace")

    @property
    def errors(self) -> str:
        return self._texts["errors"].decode(errors="replace")

    def note(self, event: str, **facts: Any) -> None:
        """Append an event of the tester's to the history."""
        line = json.dumps({"time_s": time.time(), "process": self.pid, "event": event, **facts}).encode()
        self._append(line + LINE)

    def _look(self) -> None:
        ended, status = os.waitpid(self.pid, os.WNOHANG)
        if not ended:
            return
        while self._read(0):
            pass
        self.code = os.waitstatus_to_exitcode(status)
        for key in list(self._selector.get_map().values()):
            os.close(key.fd)
        self._selector.close()
        self.note("exit", code=self.code, words=self.words, errors=self.errors[-4000:])

    def _read(self, timeout_s: float) -> bool:
        """Take in what is there; return whether anything was."""
        anything = False
        for key, _ in self._selector.select(timeout_s):
            content = os.read(key.fd, 2**16)
            if not content:
                self._selector.unregister(key.fd)
                os.close(key.fd)
                continue
            anything = True
            self._texts[key.data] += content
            if key.data == "events":
                self._take_events()
        return anything

    def _take_events(self) -> None:
        whole = self._texts["events"].rfind(LINE) + 1
        lines = bytes(self._texts["events"][:whole])
        del self._texts["events"][:whole]
        self.events += lines.count(LINE)
        self._append(lines)

    def _append(self, lines: bytes) -> None:
        with self._history.open("ab") as history:
            history.write(lines)
