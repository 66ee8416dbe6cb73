"""Who holds a runner and measures with it, in an actor or in the process of a launch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

from chorale.runners.api.base import FailureKind, Outcome, RunFailure, Runner, RunRequest
from chorale.runners.measurement.driver import measure_in_rungs
from chorale.runners.measurement.machine import exclusive, machine_lock
from chorale.synth.build.cache import CachingBuilder
from chorale.synth.errors import ChoraleError, Unavailable
from chorale.synth.redaction import redacted

ALONE_PATIENCE_S = 600.0

RunnerFactory = Callable[[], Runner]
"""A picklable call that makes a runner, for example `functools.partial(create_runner, "local")`."""

BuilderFactory = Callable[[], CachingBuilder]
"""A picklable call that makes a builder, with the caches that it looks into."""


class RunnerHolder:
    """Holds a runner, made when it is first needed. An `alone` one measures while nobody else does on its machine."""

    def __init__(self, make_runner: RunnerFactory, alone: bool = False) -> None:
        self._make_runner = make_runner
        self._alone = alone
        self._runner: Runner | None = None

    def run(self, request: RunRequest) -> Outcome:
        """Return what the runner says to `request`; an error of it becomes a RunFailure too."""
        try:
            with exclusive(machine_lock(), ALONE_PATIENCE_S) if self._alone else nullcontext():
                if self._runner is None:
                    self._runner = self._make_runner()
                return measure_in_rungs(self._runner, request)
        except Unavailable as error:
            return RunFailure(FailureKind.UNAVAILABLE, str(error))
        except ChoraleError as error:
            return RunFailure(FailureKind.REJECTED, str(error))
        except Exception as error:  # a value, so that one bad run does not end the campaign
            self._runner = None
            return RunFailure(FailureKind.CRASH, error_line(error, f"{type(error).__name__}: "))

    def close(self) -> bool:
        """Let go of the runner before the actor is killed."""
        if self._runner is not None:
            self._runner.close()
            self._runner = None
        return True


def error_line(error: BaseException, kind: str = "") -> str:
    """Return the text of `error` in one line, without passwords."""
    return redacted(" ".join(f"{kind}{error}".split()))
