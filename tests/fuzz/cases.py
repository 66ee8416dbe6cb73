"""Running damaged inputs in this process, within limits of time and memory."""

import os
import resource
import signal
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from chorale.synth.errors import ChoraleError
from tests.fuzz.parsers import PARSERS, case

CPU_S = 5.0
MEMORY_BYTES = 2**30
MAX_FAILURES = 50


@dataclass(frozen=True, slots=True)
class Failure:
    """A case that was neither taken nor refused."""

    parser: str
    seed: int
    number: int
    reason: str


class _TooSlow(BaseException):
    pass


def run_cases(name: str, seed: int, first: int, count: int, progress: Path) -> dict[str, Any]:
    """Run cases; write the number of the one that runs to `progress`, so that a death can be blamed on it."""
    PARSERS[name].parse(PARSERS[name].samples()[0])  # compiles kernels, which no case shall pay for
    _limit_memory()
    outcomes: Counter[str] = Counter()
    failures: list[Failure] = []
    descriptor = os.open(progress, os.O_RDWR | os.O_CREAT)
    for number in range(first, first + count):
        os.pwrite(descriptor, str(number).zfill(12).encode(), 0)
        outcome = run_case(name, case(name, seed, number))
        outcomes[outcome if outcome in ("taken", "refused") else "failed"] += 1
        if outcome not in ("taken", "refused") and len(failures) < MAX_FAILURES:
            failures.append(Failure(name, seed, number, outcome))
    os.close(descriptor)
    return {"outcomes": dict(outcomes), "failures": [asdict(failure) for failure in failures]}


def run_case(name: str, content: bytes) -> str:
    """Return "taken", "refused", or what else happened, in one line."""
    try:
        with _limited_time():
            PARSERS[name].parse(content)
    except ChoraleError as error:
        return "refused" if "\n" not in str(error) else "an error of several lines"
    except _TooSlow:
        return f"more than {CPU_S:.0f} s"
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(frame.filename).name}:{frame.lineno}"
        return f"{type(error).__name__}: {' '.join(str(error).split())[:120]} ({where})"
    return "taken"


@contextmanager
def _limited_time() -> Iterator[None]:
    def stop(_number: int, _frame: object) -> None:
        raise _TooSlow

    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, CPU_S)  # of the processor: a busy machine makes nobody slow
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)


def _limit_memory() -> None:
    """Let this process have `MEMORY_BYTES` more than now."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY_BYTES, hard))
