"""Run the `chorale` command in this process and look at what a script would see."""

import json
from dataclasses import dataclass
from typing import Any

import pytest

from chorale.tuner.cli.main import main


@dataclass(frozen=True, slots=True)
class Finished:
    """Exit code and output of one command."""

    code: int
    stdout: str
    stderr: str

    @property
    def document(self) -> dict[str, Any]:
        """The one JSON document on stdout."""
        return json.loads(self.stdout)


def chorale(capsys: pytest.CaptureFixture[str], *arguments: object) -> Finished:
    """Run `chorale` with `arguments`."""
    capsys.readouterr()
    code = 0
    try:
        main([str(argument) for argument in arguments])
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    captured = capsys.readouterr()
    return Finished(code, captured.out, captured.err)
