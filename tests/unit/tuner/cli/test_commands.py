"""Commands are listed without being imported, and what the list says of them is what they say themselves."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import typer

from chorale.tuner.cli.commands import COMMANDS, load_command
from chorale.tuner.cli.main import app, command_line
from tests.command import chorale

HEAVY = {"numpy", "scipy", "networkx", "ray", "mlflow", "optuna", "matplotlib", "pyarrow", "pydantic", "rich"}
MOST_MODULES = 235
"""Of `chorale --version`: about 225, most of them of typer; with rich 350, with numpy 470, with Ray 2,000."""

IMPORTED = """
import sys
from chorale.tuner.cli.main import main
try:
    main(sys.argv[1:])
finally:
    print("imported", *sys.modules, file=sys.stderr)
"""


def imported_by(*arguments: str) -> tuple[str, set[str]]:
    """Return what `chorale` prints, and the modules that a new process has imported for it."""
    finished = subprocess.run(
        [sys.executable, "-c", IMPORTED, *arguments], capture_output=True, text=True, check=False, timeout=60
    )
    words = finished.stderr.splitlines()[-1].split()
    assert words[0] == "imported", finished.stderr
    return finished.stdout, set(words[1:])


@pytest.mark.parametrize(
    "arguments", [("--version",), ("--help",), ("-h",), ("nonsense",), ("demo", "--help"), ("topology", "show", "-h")]
)
def test_no_command_is_imported_for_the_list_or_for_help(arguments: tuple[str, ...]):
    _, modules = imported_by(*arguments)
    assert not modules & HEAVY
    assert not modules & {f"chorale.tuner.cli.{module}" for module, _ in COMMANDS.values()}
    assert len(modules) < MOST_MODULES


@pytest.mark.parametrize("name", ["ui", "tune"])
def test_a_command_imports_itself_only(name: str):
    _, modules = imported_by(name, "--no-such-option", "--help")
    assert {module for module, _ in COMMANDS.values() if f"chorale.tuner.cli.{module}" in modules} == {name}
    assert not modules & {"ray", "mlflow", "optuna", "matplotlib"}


UNUSED = {
    *("ray", "mlflow", "optuna", "matplotlib", "networkx", "scipy", "pyarrow", "pydantic", "rich", "numpy.ma"),
    *("multiprocessing", "importlib.resources", "chorale.synth.topology.families.distance_regular"),
}
"""Libraries that no command on a small network waits for."""


@pytest.mark.parametrize(
    ("arguments", "most_modules"),
    [
        ("topology show torus:4x4", 365),
        ("bound torus:4x4", 350),
        ("synth bfb torus:4x4 --no-cache", 385),
        ("synth bfb torus:4x4 --no-cache -o made.json", 386),
        ("synth forest a100:2 --no-cache", 400),
        ("synth forest dragonfly:2,2,2 --no-cache", 400),
        ("synth auto mesh:4x4 --no-cache", 405),
        ("--quiet synth ring genkautz:2,9 --no-cache", 400),
        ("alltoall genkautz:2,9", 400),
        ("find --nodes 12 --degree 3 --json", 455),
        ("experiment list --json", 350),
        ("verify made.json", 525),
        ("lower made.json --target msccl-xml -o made.xml --json", 520),
        ("lift made.xml --spec torus:4x4 --json", 545),
        ("simulate made.json --sizes 1M", 380),
        ("simulate bfb torus:4x4 --sizes 1M --link-gbps 10", 385),
    ],
)
def test_a_command_on_a_small_network_imports_what_it_uses(
    arguments: str, most_modules: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, made: None
):
    monkeypatch.setenv("CHORALE_HOME", str(tmp_path))
    _, modules = imported_by(*arguments.split())
    assert not modules & UNUSED
    assert len(modules) < most_modules


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A schedule and a program in the working directory."""
    monkeypatch.chdir(tmp_path)
    assert chorale(capsys, "synth", "bfb", "torus:4x4", "--no-cache", "-o", "made.json").code == 0
    assert chorale(capsys, "lower", "made.json", "--target", "msccl-xml", "-o", "made.xml").code == 0


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_has_the_help_of_the_command_itself(name: str):
    command = load_command(name)
    assert command.name == name
    assert " ".join((command.help or "").split("\n\n")[0].split()) == COMMANDS[name][1]


def walk(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the words of every command in `command`, groups among them."""
    for name, inner in getattr(command, "commands", {}).items():
        yield (*words, name)
        yield from walk(inner, (*words, name))


def printed(command: Any, *words: str) -> str:
    with redirect_stdout(io.StringIO()) as stream, pytest.raises(SystemExit) as end:
        command.main(list(words), prog_name="chorale")
    assert end.value.code == 0
    return stream.getvalue()


@pytest.mark.parametrize("columns", ["40", "80"])
def test_help_is_that_of_the_command_itself(columns: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", columns)
    listed, itself = typer.main.get_group(app), command_line()
    for words in walk(itself):
        assert printed(listed, *words, "--help") == printed(itself, *words, "--help"), words


def test_a_help_flag_after_other_words_is_read_by_the_command(capsys: pytest.CaptureFixture[str]):
    assert chorale(capsys, "synth", "ring", "ring:4", "--help").stdout.startswith("Usage: chorale synth [OPTIONS]")
    assert chorale(capsys, "synth", "--objective", "--help").code == 2
    assert chorale(capsys, "topology", "nonsense", "--help").code == 2


def test_every_command_of_every_module_is_listed(capsys: pytest.CaptureFixture[str]):
    text = " ".join(chorale(capsys, "--help").stdout.split())
    for name, (_, summary) in COMMANDS.items():
        assert f"{name} {summary}" in text
    assert list(command_line().commands) == list(COMMANDS)


def test_a_command_that_does_not_exist_is_refused_with_the_nearest(capsys: pytest.CaptureFixture[str]):
    finished = chorale(capsys, "topolgy")
    assert finished.code == 2
    assert "Did you mean 'topology'" in " ".join(finished.stderr.split())
