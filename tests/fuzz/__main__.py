"""`python -m tests.fuzz --count 100000 --seed 1`: damaged files for every parser; exit 1 if one is more than refused.

Cases are run in a child process that may use `CPU_S` of processor time for a case, and `MEMORY_BYTES` more than at its
start. A parser must take a case or refuse it with an error of Chorale's; anything else is a failure, printed with its
number: `--parser NAME --first NUMBER --count 1` repeats it, `--show` prints its bytes.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.fuzz.cases import Failure, run_cases
from tests.fuzz.parsers import PARSERS, case

SILENCE_S = 120.0


def run_parser(name: str, seed: int, first: int, count: int) -> tuple[Counter[str], list[Failure]]:
    """Run cases in children: one that dies has failed in its last case, and another goes on behind that."""
    outcomes: Counter[str] = Counter()
    failures: list[Failure] = []
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
                failures += [Failure(**failure) for failure in document["failures"]]
                break
            if not progress.exists():
                raise SystemExit(f"{name}: no case was begun: {reason}")
            last = int(progress.read_text())
            outcomes.update({"refused or taken before a death": last - number, "died": 1})
            failures.append(Failure(name, seed, last, reason))
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
    all_failures: list[Failure] = []
    for name in names:
        outcomes, failures = run_parser(name, given.seed, given.first, share)
        all_failures += failures
        sys.stdout.write(f"{name}: {sum(outcomes.values())} inputs, {dict(outcomes)}, {len(failures)} failures\n")
        for failure in failures[:20]:
            sys.stdout.write(f"  --parser {name} --seed {failure.seed} --first {failure.number}: {failure.reason}\n")
        sys.stdout.flush()
    return int(bool(all_failures))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=1000, help="inputs altogether")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--parser", action="append", choices=list(PARSERS))
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    raise SystemExit(main(parser.parse_args()))
