"""What a person sees on a terminal while a command takes long, and nobody elsewhere."""

import time
from io import StringIO

import pytest

from chorale.tuner.cli import output
from chorale.tuner.reports.tables import WordConsole


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> StringIO:
    shown = StringIO()
    monkeypatch.setattr(output, "people", WordConsole(file=shown, force_terminal=True, width=80))
    return shown


def test_the_stage_that_has_begun_is_shown(terminal: StringIO) -> None:
    with output.stage_display("oneccl-xml, 8 ranks") as observe:
        for stage in ("lowering", "check"):
            with observe(stage):
                until = time.monotonic() + 10
                while f"oneccl-xml, 8 ranks: {stage}" not in terminal.getvalue() and time.monotonic() < until:
                    time.sleep(0.01)
            assert f"oneccl-xml, 8 ranks: {stage}" in terminal.getvalue()


def test_no_stage_is_shown_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with output.stage_display("oneccl-xml, 8 ranks") as observe, observe("lowering"):
        pass
    assert capsys.readouterr() == ("", "")
