"""One process of a campaign: the command itself, which says through a pipe what it does, one JSON event a line.

`in_a_fork` runs it beside workers of its own process, so that the libraries are imported once. Nothing of the command
is left out but pictures, which take half of its time.
"""

import io
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

from chorale.tuner.cli import main as command
from chorale.tuner.config.campaign import runner_factory
from chorale.tuner.files.home import Home
from chorale.tuner.search.search import Search
from chorale.tuner.tracking.mlflow_store import MlflowStore
from chorale.tuner.tracking.tracker import TRIAL_ID
from chorale.tuner.trials.journal import Journal
from tests.fakes import InlineWorkers
from tests.mlflow_connections import forget_connections


class History:
    """Writes events into a pipe; a line is short enough to arrive as a whole, also when the process is killed."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe

    def say(self, event: str, **facts: Any) -> None:
        document = {"time_s": time.time(), "process": os.getpid(), "event": event, **facts}
        os.write(self._pipe, json.dumps(document).encode() + b"\n")


def report_to(history: History) -> None:
    """Have this process say what it suggests, records and tells MLflow."""

    def say_suggestion(found: Any, *_: object) -> None:
        if found is not None:
            history.say("suggested", candidate=found.candidate.parameters)

    def say_record(event: str, line: bytes) -> None:
        record = json.loads(line)
        if "trial_id" in record:
            history.say(event, trial=record["trial_id"], candidate=record["candidate"])

    def say_run(_store: object, _id: str, _name: str, tags: Any, *_: object) -> None:
        if TRIAL_ID in tags:
            history.say("tracking", trial=tags[TRIAL_ID])

    _around(Search, "ask", after=say_suggestion)
    _around(
        Journal,
        "append",
        before=lambda _journal, line: say_record("recording", line),
        after=lambda _none, _journal, line: say_record("recorded", line),
    )
    _around(MlflowStore, "start_run", before=say_run)
    _around(MlflowStore, "end_run", after=lambda _none, _store, run, status, *_: history.say("ended", run=run))


def _around(owner: type, method: str, before: Callable[..., object] | None = None, after: Any = None) -> None:
    genuine = getattr(owner, method)

    def call(*arguments: Any, **named: Any) -> Any:
        if before is not None:
            before(*arguments)
        answer = genuine(*arguments, **named)
        if after is not None:
            after(answer, *arguments)
        return answer

    setattr(owner, method, call)


def without_workers() -> ExitStack:
    """Let campaigns of this process measure and build in it, until the stack is closed."""

    def make_workers(campaign: Any, topology: Any, home: Path, address: str | None = None) -> Callable[[], Any]:
        return lambda: InlineWorkers(runner_factory(campaign.runner, topology, home)())

    stack = ExitStack()
    stack.enter_context(patch("chorale.tuner.cli.tune_launch.make_workers", make_workers))
    return stack


def warm_up(words: list[str], home: Path) -> None:
    """Run `chorale WORDS` in this process, so that its forks find everything imported and compiled.

    No thread and no connection to a database stays, which a fork could not take along.
    """
    os.environ["CHORALE_HOME"] = str(home)
    with without_workers(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as errors:
        code = run(words)
    assert code == 0, errors.getvalue()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    forget_connections(Home(home).mlflow_uri)
    assert threading.active_count() == 1, threading.enumerate()


def in_a_fork(words: list[str], home: Path, pipes: tuple[int, int, int]) -> int:
    """Run `chorale WORDS` in a fork of this process; `pipes` take its output, errors and events. Return its id."""
    child = os.fork()
    if child:
        return child
    code = 70
    try:
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        os.dup2(pipes[0], 1)
        os.dup2(pipes[1], 2)
        os.environ["CHORALE_HOME"] = str(home)
        without_workers()
        code = run(words, History(pipes[2]))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def run(words: list[str], history: History | None = None) -> int:
    """Run the command in this process; return its exit code. What it raises goes to stderr, as Python prints it."""
    if history is not None:
        report_to(history)
        history.say("began", words=words)
    try:
        command.main(words)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0
