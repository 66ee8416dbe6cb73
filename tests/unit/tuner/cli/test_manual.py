"""Manual pages: every command and option, in the macros of man(7) only."""

import pytest

from chorale.tuner.cli.commands import COMMANDS
from chorale.tuner.cli.manual import COMPLETIONS, shared_files

MACROS = {".TH", ".SH", ".SS", ".TP", ".PP"}


@pytest.fixture(scope="module")
def files() -> dict[str, str]:
    return shared_files("1.2.3")


@pytest.fixture(scope="module")
def pages(files: dict[str, str]) -> dict[str, str]:
    return {name.rpartition("/")[2]: text for name, text in files.items() if "/man1/" in name}


def test_there_is_a_page_for_each_command(pages: dict[str, str]) -> None:
    assert set(pages) == {"chorale.1", *(f"chorale-{name}.1" for name in COMMANDS)}


def test_lines_are_macros_or_text(pages: dict[str, str]) -> None:
    for name, text in pages.items():
        for line in text.splitlines():
            assert not line.startswith("'"), name
            assert not line.startswith(".") or line.split()[0] in MACROS, (name, line)
        assert text.startswith('.TH "CHORALE')


def test_options_and_inner_commands_are_told(pages: dict[str, str]) -> None:
    synth = pages["chorale-synth.1"]
    assert "\\fB\\-\\-collective\\fR \\fINAME\\fR" in synth
    assert "Example: chorale synth torus:4x4" in synth
    assert '.SH "CHORALE FABRIC UP"' in pages["chorale-fabric.1"]
    assert '.SH "CHORALE SYNTH"' in pages["chorale.1"]


def test_shells_find_their_completions(files: dict[str, str]) -> None:
    assert set(COMPLETIONS.values()) <= set(files)
    assert "_CHORALE_COMPLETE=complete_bash" in files[COMPLETIONS["bash"]]
