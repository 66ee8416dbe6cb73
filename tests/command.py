"""Run the `chorale` command in this process, or Python in another, and look at what a script would see."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from chorale.tuner.cli.main import main

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Finished:
    code: int
    stdout: str
    stderr: str

    @property
    def document(self) -> dict[str, Any]:
        return json.loads(self.stdout)


def chorale(capsys: pytest.CaptureFixture[str], *arguments: object, code: int | None = None) -> Finished:
    """Run `chorale` with `arguments`; its exit code must be `code` if one is given."""
    capsys.readouterr()
    found = 0
    try:
        main([str(argument) for argument in arguments])
    except SystemExit as stop:
        found = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    captured = capsys.readouterr()
    assert code in (None, found), f"{found}: {captured.out[-2000:]}{captured.err[-3000:]}"
    return Finished(found, captured.out, captured.err)


def python(
    *words: object, code: int | None = 0, folder: Path = ROOT, timeout_s: float = 600, **variables: str
) -> Finished:
    """Run this Python, which finds the checkout, in a process of its own; its exit code must be `code` if one is given.

    `variables` are added to the environment.
    """
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert code in (None, done.returncode), f"{done.returncode}: {done.stdout[-2000:]}{done.stderr[-3000:]}"
    return Finished(done.returncode, done.stdout, done.stderr)
