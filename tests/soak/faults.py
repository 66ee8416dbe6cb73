"""The faults of a sequence: of a launch that runs, and of its files when it has ended."""

import json
import os
import resource
import selectors
import shutil
import signal
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
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
            text = self._texts[key.data]
            text += content
            if key.data == "events":
                whole = text.rfind(LINE) + 1
                self.events += text.count(LINE)
                self._append(bytes(text[:whole]))
                del text[:whole]
        return anything

    def _append(self, lines: bytes) -> None:
        with self._history.open("ab") as history:
            history.write(lines)


LIMIT_S = 120.0
GARBAGE = b"\xff\x00 garbage\n" * 4096
NO_LIMIT = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)


@dataclass
class Scene:
    """Where a sequence takes place. `second` starts another `--resume`; `number` is a random number for choices."""

    home: Path
    process: Process
    second: Callable[[], Process]
    number: int

    @property
    def folder(self) -> Path:
        """The folder of the newest launch that has begun, or of the first."""
        begun = [
            journal.parent for journal in self.home.glob("campaigns/soak/*/trials.jsonl") if journal.stat().st_size
        ]
        return max(begun, key=lambda folder: int(folder.name), default=self.home / "campaigns/soak/1")

    @property
    def journal(self) -> Path:
        return self.folder / "trials.jsonl"

    @property
    def optuna(self) -> Path:
        return self.folder / "optuna.journal"

    @property
    def database(self) -> Path:
        return self.home / "mlflow.db"

    @property
    def pause_s(self) -> float:
        return self.number % 100 / 100

    def go_on(self, seconds: float) -> None:
        """Let the launch work, or stand still, for a while."""
        end_s = time.monotonic() + seconds
        self.process.until(lambda: time.monotonic() > end_s, LIMIT_S)

    @property
    def begun(self) -> bool:
        return self.journal.exists() and b"\n" in self.journal.read_bytes()


def strike(kind: str, scene: Scene) -> None:
    """Let the fault `kind` happen to the launch that runs."""
    faults: dict[str, Callable[[], object]] = {
        "kill": scene.process.kill,
        "terminate": lambda: scene.process.signal(signal.SIGTERM),
        "interrupt": lambda: scene.process.signal(signal.SIGINT),
        "stop and go": lambda: _stop_and_go(scene),
        "second launch": lambda: _second(scene),
        "journal replaced": lambda: _journal_replaced(scene),
        "disk full": lambda: _disk_full(scene),
        "database locked": lambda: _database_locked(scene),
        "database removed": lambda: _database_removed(scene),
        "search file damaged": lambda: _damaged(scene.optuna),
        "search file removed": lambda: scene.optuna.unlink(missing_ok=True),
    }
    faults[kind]()


def _stop_and_go(scene: Scene) -> None:
    scene.process.signal(signal.SIGSTOP)
    _second(scene)
    time.sleep(scene.pause_s)
    scene.process.signal(signal.SIGCONT)


def _second(scene: Scene) -> None:
    """Start another launch beside the first, once this has begun: before, it would be a launch of its own."""
    if scene.begun:
        scene.second().wait(LIMIT_S)


def _journal_replaced(scene: Scene) -> None:
    """Put a copy in place of the journal, as file servers and restored backups do, so that no lock holds."""
    scene.process.signal(signal.SIGSTOP)
    if scene.begun:
        copy = scene.journal.with_name("copy")
        shutil.copy(scene.journal, copy)
        copy.rename(scene.journal)
        second = scene.second()
        second.until(lambda: second.events > scene.number % 20, LIMIT_S)
        scene.process.signal(signal.SIGCONT)
        second.wait(LIMIT_S)
    scene.process.signal(signal.SIGCONT)


def _disk_full(scene: Scene) -> None:
    """Let no file grow beyond the journal and a bit, for a while."""
    size_bytes = scene.journal.stat().st_size if scene.journal.exists() else 0
    with suppress(ProcessLookupError):
        resource.prlimit(scene.process.pid, resource.RLIMIT_FSIZE, (size_bytes + scene.number % 1500, NO_LIMIT[1]))
        scene.go_on(1.5 * scene.pause_s)
        resource.prlimit(scene.process.pid, resource.RLIMIT_FSIZE, NO_LIMIT)


def _database_locked(scene: Scene) -> None:
    with closing(sqlite3.connect(scene.database, timeout=0.5, isolation_level=None)) as database:
        with suppress(sqlite3.Error):
            database.execute("BEGIN EXCLUSIVE")
        scene.go_on(2 * scene.pause_s)


def _database_removed(scene: Scene) -> None:
    for suffix in ("", "-wal", "-shm"):
        scene.database.with_name(f"mlflow.db{suffix}").unlink(missing_ok=True)


def _damaged(file: Path) -> None:
    if file.is_file():
        with file.open("r+b") as stream:
            stream.write(GARBAGE[: max(1, file.stat().st_size // 2)])


def damage(kind: str, scene: Scene) -> bool:
    """Damage the files of a launch that has ended; return whether only `chorale campaign repair` helps."""
    if kind in ("last line torn", "line changed", "unfinished line"):
        return scene.begun and _damaged_journal(kind, scene)
    if kind.startswith("search file") and scene.optuna.is_file():
        scene.optuna.unlink()
        if kind.endswith("garbage"):
            scene.optuna.write_bytes(GARBAGE)
        elif kind.endswith("folder"):
            scene.optuna.mkdir()
    return False


def _damaged_journal(kind: str, scene: Scene) -> bool:
    lines = scene.journal.read_bytes().splitlines(keepends=True)
    if kind == "unfinished line":
        lines.append(b'{"trial_id":"0123')
    elif len(lines) < 2:
        return False
    else:
        index = 1 + scene.number % (len(lines) - 1) if kind == "line changed" else len(lines) - 1
        scene.process.note("lost", trial=json.loads(lines[index]).get("trial_id"))
        torn = lines[index][: len(lines[index]) // 2]
        lines[index] = _changed(lines[index], scene.number) if kind == "line changed" else torn
    scene.journal.write_bytes(b"".join(lines))
    return kind == "line changed"


def _changed(line: bytes, number: int) -> bytes:
    """Return a line with another byte before its checksum."""
    index = number % (len(line) - 25)
    other = b"x" if line[index : index + 1] != b"x" else b"y"
    return line[:index] + other + line[index + 1 :]
