"""`python -m tests.fuzz --count 100000 --seed 1`: damaged files for every parser; exit 1 if one is more than refused.

Cases are run in a child process that may use `CPU_S` of processor time for a case, and `MEMORY_BYTES` more than at its
start. A parser must take a case or refuse it with an error of Chorale's; anything else is a failure, printed with its
number: `--parser NAME --first NUMBER --count 1` repeats it, `--show` prints its bytes.
"""

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from chorale.synth.errors import ChoraleError
from tests.fuzz.parsers import PARSERS, case

SILENCE_S = 120.0
CPU_S = 5.0
MEMORY_BYTES = 2**30
MAX_FAILURES = 50


class _TooSlow(BaseException):
    pass


def run_cases(name: str, seed: int, first: int, count: int, progress: Path) -> dict[str, Any]:
    """Run cases; write the number of the one that runs to `progress`, so that a death can be blamed on it."""
    PARSERS[name].parse(PARSERS[name].samples()[0])  # compiles kernels, which no case shall pay for
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY_BYTES, hard))
    outcomes: Counter[str] = Counter()
    failures: list[tuple[int, str]] = []
    descriptor = os.open(progress, os.O_RDWR | os.O_CREAT)
    for number in range(first, first + count):
        os.pwrite(descriptor, str(number).zfill(12).encode(), 0)
        outcome = run_case(name, case(name, seed, number))
        outcomes[outcome if outcome in ("taken", "refused") else "failed"] += 1
        if outcome not in ("taken", "refused") and len(failures) < MAX_FAILURES:
            failures.append((number, outcome))
    os.close(descriptor)
    return {"outcomes": dict(outcomes), "failures": failures}


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


def run_parser(name: str, seed: int, first: int, count: int) -> tuple[Counter[str], list[tuple[int, str]]]:
    """Run cases in children: one that dies has failed in its last case, and another goes on behind that.

    Return how many cases ended how, and the numbers of those that failed with the reasons.
    """
    outcomes: Counter[str] = Counter()
    failures: list[tuple[int, str]] = []
    number, end = first, first + count
    with tempfile.TemporaryDirectory(prefix="chorale-fuzz-") as folder:
        progress = Path(folder) / "progress"
        while number < end:
            command = [sys.executable, "-m", "tests.fuzz", "--child", str(progress), "--parser", name]
            command += ["--seed", str(seed), "--first", str(number), "--count", str(end - number)]
            try:
                done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SILENCE_S + count)
                document = json.loads(done.stdout) if done.returncode == 0 else None
                reason = f"the process ended with {done.returncode}: {done.stderr[-300:]}"
            except subprocess.TimeoutExpired:
                document, reason = None, "no answer"
            if document is not None:
                outcomes.update(document["outcomes"])
                failures += map(tuple, document["failures"])
                break
            if not progress.exists():
                raise SystemExit(f"{name}: no case was begun: {reason}")
            last = int(progress.read_text())
            outcomes.update({"refused or taken before a death": last - number, "died": 1})
            failures.append((last, reason))
            number = last + 1
            progress.unlink()
    return outcomes, failures


def main(given: argparse.Namespace) -> int:
    names = given.parser or list(PARSERS)
    if given.show:
        sys.stdout.buffer.write(case(names[0], given.seed, given.first))
        return 0
    if given.child:
        sys.stdout.write(json.dumps(run_cases(names[0], given.seed, given.first, given.count, given.child)))
        return 0
    share = -(-given.count // len(names))
    failed = 0
    for name in names:
        outcomes, failures = run_parser(name, given.seed, given.first, share)
        failed += len(failures)
        sys.stdout.write(f"{name}: {sum(outcomes.values())} inputs, {dict(outcomes)}, {len(failures)} failures\n")
        for number, reason in failures[:20]:
            sys.stdout.write(f"  --parser {name} --seed {given.seed} --first {number}: {reason}\n")
        sys.stdout.flush()
    return int(failed > 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=1000, help="inputs altogether")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--parser", action="append", choices=list(PARSERS))
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    raise SystemExit(main(parser.parse_args()))
