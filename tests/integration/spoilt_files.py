"""Commands of campaigns on files that are not what they should be, as a user who is not root.

`python -m tests.integration.spoilt_files FOLDER [--every N]` prints one JSON document: for each file, what it was made
into and command, how the command ended, in what time, with how much memory and what it said. Commands run in forks of
this process, so that the libraries are imported once.
"""

import argparse
import json
import os
import resource
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.campaigns import small_campaign
from tests.soak.launches import run, warm_up, without_workers

USER = 65534
LIMIT_S = 60.0
MEMORY_BYTES = 2**30
"""What a command may take beyond what this process has."""
NAME = "small"

LAUNCH = "campaigns/small/1"
FILES = [
    *(f"{LAUNCH}/{name}" for name in ("trials.jsonl", "optuna.journal", "schedules", "programs")),
    LAUNCH,
    "campaigns/small",
    "campaigns",
    "mlflow.db",
    "artifacts",
]
COMMANDS = {
    "resume": ["tune", "{file}", "--resume", "--json"],
    "tune": ["tune", "{file}", "--json"],
    "plan": ["tune", "{file}", "--dry-run", "--json"],
    "check": ["campaign", "check", NAME, "--json"],
    "repair": ["campaign", "repair", NAME, "--json"],
    "table": ["table", "write", "--campaign", NAME, "-o", "{home}/table"],
    "best": ["best", "--topology", "ring:4", "--collective", "allreduce", "--size", "4KiB"],
}


def _others(path: Path) -> None:
    """Give it to another user, who keeps it to himself."""
    os.chown(path, 0, 0)
    path.chmod(0o700 if path.is_dir() else 0o600)


def _removed(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def _replaced(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def spoil(path: Path) -> None:
        _removed(path)
        make(path)
        if not path.is_symlink():
            os.chown(path, USER, USER)

    return spoil


def _socket(path: Path) -> None:
    before = os.getcwd()
    os.chdir(path.parent)  # its whole path may be too long
    try:
        socket.socket(socket.AF_UNIX).bind(path.name)
    finally:
        os.chdir(before)


WAYS: dict[str, Callable[[Path], None]] = {
    "of another user": _others,
    "a folder": _replaced(Path.mkdir),
    "endless": _replaced(lambda path: path.symlink_to("/dev/zero")),
    "a pipe": _replaced(os.mkfifo),
    "a socket": _replaced(_socket),
    "a link to itself": _replaced(lambda path: path.symlink_to(path.name)),
    "a link to nothing": _replaced(lambda path: path.symlink_to("nothing/at/all")),
    "empty": _replaced(Path.touch),
    "garbage": _replaced(lambda path: path.write_bytes(b"\xff\xfe\x00garbage\n" * 500)),
    "missing": _removed,
}


def in_a_fork(words: list[str], home: Path, folder: Path) -> dict[str, Any]:
    """Run `chorale WORDS` as another user; return its exit code (None: it took too long), time, memory and errors."""
    out, errors = folder / "out", folder / "errors"
    began_s = time.monotonic()
    before_bytes = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    child = os.fork()
    if child == 0:
        _as_user(words, home, out, errors)
    status, usage = _ended(child, began_s + LIMIT_S)
    code = None if status is None else os.waitstatus_to_exitcode(status)
    more_bytes = 1024 * usage.ru_maxrss - before_bytes
    said = errors.read_text(errors="replace")[-3000:] if errors.exists() else ""
    return {"code": code, "seconds": round(time.monotonic() - began_s, 2), "more_bytes": more_bytes, "errors": said}


def _as_user(words: list[str], home: Path, out: Path, errors: Path) -> None:
    code = 70
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        for number, path in ((1, out), (2, errors)):
            os.dup2(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o666), number)
        os.setgroups([])
        os.setresgid(USER, USER, USER)
        os.setresuid(USER, USER, USER)
        os.environ |= {"CHORALE_HOME": str(home), "HOME": str(home.parent)}
        with without_workers():
            code = run(words)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _ended(child: int, deadline_s: float) -> tuple[int | None, resource.struct_rusage]:
    while time.monotonic() < deadline_s:
        ended, status, usage = os.wait4(child, os.WNOHANG)
        if ended:
            return status, usage
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    return None, os.wait4(child, 0)[2]


def cases() -> Iterator[tuple[str, str, str]]:
    """Yield (file, what it is made into, command)."""
    yield from ((file, way, command) for file in FILES for way in WAYS for command in COMMANDS)


def prepared(folder: Path) -> Path:
    """Return the data folder of a finished launch that the other user owns, and write the campaign file beside it."""
    home, file = folder / "finished", folder / "small.yaml"
    home.mkdir()
    document = small_campaign(budget={"trials": 4}, repeats=1, sizes=["4KiB"], final={"launches": 2})
    file.write_text(yaml.safe_dump(document.model_dump(by_alias=True, mode="json", exclude_unset=True)))
    warm_up(["tune", str(file)], home)
    for path in (folder, home, *home.rglob("*")):
        os.chown(path, USER, USER)
    return home


def main(folder: Path, chosen: list[tuple[str, str, str]]) -> dict[str, Any]:
    folder.chmod(0o755)
    finished = prepared(folder)
    found = {}
    for number, (file, way, command) in enumerate(chosen):
        place = folder / str(number)
        place.mkdir()
        os.chown(place, USER, USER)
        home = place / "home"
        shutil.copytree(finished, home, symlinks=True)
        for path in (home, *home.rglob("*")):
            os.chown(path, USER, USER)
        WAYS[way](home / file)
        words = [word.format(file=folder / "small.yaml", home=place) for word in COMMANDS[command]]
        found[f"{command}: {file} {way}"] = in_a_fork(words, home, place)
        shutil.rmtree(place)
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--every", type=int, default=1, help="of so many cases, one")
    given = parser.parse_args()
    print(json.dumps(main(given.folder, list(cases())[:: given.every])))  # noqa: T201
