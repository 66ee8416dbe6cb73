"""What runs inside the actors of a campaign: they keep no state that is not rebuilt on a restart."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext

from runners.api import FailureKind, Outcome, RunFailure, Runner, RunRequest
from runners.exclusive import exclusive, machine_lock
from runners.measurement.rungs import measure_in_rungs
from runners.packed import Packed
from runners.preparation import Prepared, Recipe, Refusal
from runners.preparer import Preparer
from synth.errors import ChoraleError, Unavailable

ALONE_PATIENCE_S = 600.0

RunnerFactory = Callable[[], Runner]
"""A picklable recipe of a runner, for example `functools.partial(create_runner, "local")`."""


class PrepareWorker:
    """Synthesizes, verifies, lowers and checks candidates."""

    def __init__(self) -> None:
        self._preparer = Preparer()

    def prepare(self, recipe: Recipe) -> tuple[Packed[Prepared | Refusal], float, float]:
        """Return what came of it, the seconds it took, and the CPU time."""
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        answer = Packed.of(self._preparer.prepare(recipe))
        return answer, time.perf_counter() - began_s, time.process_time() - began_cpu_s


class MeasureWorker:
    """Holds a runner, made when it is first needed. An `alone` one measures while nobody else does on its machine."""

    def __init__(self, make_runner: RunnerFactory, alone: bool = False) -> None:
        self._make_runner = make_runner
        self._alone = alone
        self._runner: Runner | None = None

    def measure(self, request: Packed[RunRequest]) -> tuple[Outcome, float, float]:
        """Return what the runner says, the seconds it took, and the CPU time of this process; an error of the runner
        becomes a RunFailure too.
        """
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        outcome = self._submit(request.open())
        return outcome, time.perf_counter() - began_s, time.process_time() - began_cpu_s

    def _submit(self, request: RunRequest) -> Outcome:
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
            return RunFailure(FailureKind.CRASH, " ".join(f"{type(error).__name__}: {error}".split()))

    def close(self) -> bool:
        """Let go of the runner before the actor is killed."""
        if self._runner is not None:
            self._runner.close()
            self._runner = None
        return True
