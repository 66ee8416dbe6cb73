"""Commands are listed without being imported, and what the list says of them is what they say themselves."""

import subprocess
import sys
from pathlib import Path

import pytest

from chorale.tuner.cli.commands import COMMANDS, load_command
from chorale.tuner.cli.main import command_line
from tests.command import chorale

HEAVY = {"numpy", "scipy", "networkx", "ray", "mlflow", "optuna", "matplotlib", "pyarrow", "pydantic", "rich"}

UNUSED = {"ray", "mlflow", "optuna", "matplotlib"}
"""Libraries that no command on a small network waits for."""

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


@pytest.mark.parametrize("arguments", [("--version",), ("--help",), ("-h",)])
def test_no_command_is_imported_for_the_list(arguments: tuple[str, ...]):
    _, modules = imported_by(*arguments)
    assert not modules & HEAVY
    assert not modules & {f"chorale.tuner.cli.{module}" for module, _ in COMMANDS.values()}


@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_needs_an_optional_library_to_be_described(name: str):
    _, modules = imported_by(name, "--help")
    assert not modules & UNUSED


@pytest.mark.parametrize(
    "arguments",
    [
        "topology show torus:4x4",
        "bound torus:4x4",
        "synth bfb torus:4x4 --no-cache -o made.json",
        "synth forest a100:2 --no-cache",
        "--quiet synth ring genkautz:2,9 --no-cache",
        "alltoall genkautz:2,9",
        "find --nodes 12 --degree 3 --json",
        "verify made.json",
        "lower made.json --target msccl-xml -o made.xml --json",
        "lift made.xml --spec torus:4x4 --json",
        "simulate bfb torus:4x4 --sizes 1M --link-gbps 10",
    ],
)
def test_a_command_on_a_small_network_imports_what_it_uses(
    arguments: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, made: None
):
    monkeypatch.setenv("CHORALE_HOME", str(tmp_path))
    _, modules = imported_by(*arguments.split())
    assert not modules & UNUSED


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A schedule and a program in the working directory."""
    monkeypatch.chdir(tmp_path)
    assert chorale(capsys, "synth", "bfb", "torus:4x4", "--no-cache", "-o", "made.json").code == 0
    assert chorale(capsys, "lower", "made.json", "--target", "msccl-xml", "-o", "made.xml").code == 0


def test_a_help_flag_after_other_words_is_read_by_the_command(capsys: pytest.CaptureFixture[str]):
    assert chorale(capsys, "synth", "ring", "ring:4", "--help").stdout.startswith("Usage: chorale synth [OPTIONS]")
    assert chorale(capsys, "topology", "nonsense", "--help").code == 2


def test_every_command_of_every_module_is_listed(capsys: pytest.CaptureFixture[str]):
    text = " ".join(chorale(capsys, "--help").stdout.split())
    for name, (_, summary) in COMMANDS.items():
        assert f"{name} {summary}" in text
        command = load_command(name)
        assert (command.name, " ".join((command.help or "").split("\n\n")[0].split())) == (name, summary)
    assert list(command_line().commands) == list(COMMANDS)


def test_a_command_that_does_not_exist_is_refused_with_the_nearest(capsys: pytest.CaptureFixture[str]):
    finished = chorale(capsys, "topolgy")
    assert finished.code == 2
    assert "Did you mean 'topology'" in " ".join(finished.stderr.split())
