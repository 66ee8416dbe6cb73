"""The first hour on a fresh machine, recorded: each command of the page in a new environment, its time and its screen.

    python -m tests.packaging.first_hour -o FILE.md

Exit code 1 if a command fails. What serves until it is stopped is left out.
"""

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.docs.pages import DOCS, ROOT, commands_of
from tests.packaging.build import build_wheel

PAGE = "guide/first-hour.md"
_LIMIT_S = 600
_MAX_LINES = 24
_HEAD = """# The first hour, recorded

Every command of [the first hour](first-hour.md), in its order, on a machine that had nothing of Chorale: a new virtual
environment, the wheel with the extra `tune`, an empty data folder. What passed is wall time; long screens are cut where
it says `…`. Recorded by `python -m tests.packaging.first_hour` with {machine}, load {load:.0f} at the end.

| command | seconds |
|---|---|
"""


@dataclass(frozen=True, slots=True)
class Step:
    """A command that ran: its wall time, exit code, and what a terminal of 80 columns showed."""

    text: str
    seconds: float
    code: int
    screen: str


def run_step(text: str, folder: Path, environment: dict[str, str]) -> Step:
    """Run one line in `folder`, with both outputs together."""
    start_s = time.monotonic()
    done = subprocess.run(
        ["bash", "-c", text],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    return Step(text, time.monotonic() - start_s, done.returncode, done.stdout)


def record(folder: Path) -> list[Step]:
    """Install the wheel in a new environment under `folder`, and run the page."""
    wheel = build_wheel(folder / "wheel")
    desk = folder / "desk"
    desk.mkdir()
    bare = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "CHORALE"))}
    variables = bare | {"PATH": f"{folder / 'venv' / 'bin'}:{bare['PATH']}", "HOME": str(desk), "COLUMNS": "80"}
    install = f"pip install --quiet -c {ROOT / 'constraints.txt'} {wheel}[tune]"
    steps = [
        run_step(f"{sys.executable} -m venv {folder / 'venv'}", desk, bare),
        run_step(install, desk, variables),
    ]
    lines = [command.text for command in commands_of((DOCS / PAGE).read_text()) if command.refusal is None]
    for line in lines:
        if line.split()[1] == "ui":
            continue
        steps.append(run_step(line, desk, variables))
        print(f"{steps[-1].seconds:7.1f} s  exit {steps[-1].code}  {line}", flush=True)
    first = Step("python3 -m venv venv", steps[0].seconds, steps[0].code, "")
    second = Step('pip install "chorale-collectives[tune]"', steps[1].seconds, steps[1].code, steps[1].screen)
    return [first, second, *steps[2:]]


def as_markdown(steps: list[Step], folder: Path) -> str:
    """Return the page: a table of times, then every screen; without paths of this machine."""
    machine = f"{os.cpu_count()} cores, Python {platform.python_version()}, {platform.system()}"
    rows = "".join(f"| `{step.text.replace('|', chr(92) + '|')}` | {step.seconds:.1f} |\n" for step in steps)
    total_s = sum(step.seconds for step in steps)
    screens = "".join(f"\n```text\n$ {step.text}\n{_cut(step.screen)}```\n" for step in steps)
    head = _HEAD.format(machine=machine, load=os.getloadavg()[0])
    text = f"{head}{rows}| all of them | {total_s:.0f} |\n\n## Screens\n{screens}"
    return text.replace(str(folder / "desk"), "~").replace(str(folder), "~")


def _cut(screen: str) -> str:
    lines = [line.rstrip() for line in screen.rstrip().splitlines()]
    shown = lines if len(lines) <= _MAX_LINES else [*lines[: _MAX_LINES - 8], "…", *lines[-7:]]
    return "".join(f"{line}\n" for line in shown)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True)
    output = parser.parse_args().output
    folder = Path(tempfile.mkdtemp(prefix="chorale-first-hour-"))
    try:
        steps = record(folder)
        output.write_text(as_markdown(steps, folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return int(any(step.code for step in steps))


if __name__ == "__main__":
    raise SystemExit(main())
