"""What shells complete, from a table that is as the command line declares it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from chorale.runners.api.elements import ELEMENT_TYPES
from chorale.runners.api.registry import RUNNERS
from chorale.synth.collective import STANDARD
from chorale.synth.methods.catalog import METHODS
from chorale.synth.targets.registry import TARGETS
from chorale.tuner.cli import choices
from chorale.tuner.cli.completion import TABLE, _split, completion_output
from chorale.tuner.cli.completion_table import table_text
from chorale.tuner.config.executors import EXECUTORS

MOST_MODULES = 110
"""Of a TAB: Python's own beside json and shlex; `chorale --help` imports 225, a command 400 and more."""

SCRIPT = """
import sys
from chorale.__main__ import main
try:
    main()
finally:
    print(*sys.modules, file=sys.stderr)
"""


def complete(line: str, shell: str = "bash") -> list[str]:
    """Return what a shell gets for `line`, whose last word it completes."""
    environment = {"_CHORALE_COMPLETE": f"complete_{shell}", "COMP_WORDS": line, "_TYPER_COMPLETE_ARGS": line}
    words = _split(line)
    environment["COMP_CWORD"] = str(len(words) if line.endswith(" ") else len(words) - 1)
    return completion_output(environment)[0].split("\n")


def test_the_table_is_that_of_the_command_line() -> None:
    assert TABLE.read_text() == table_text(), "run: python -m chorale.tuner.cli.completion_table"


def test_names_are_those_of_the_catalogs() -> None:
    assert tuple(METHODS) == choices.METHODS
    assert tuple(STANDARD) == choices.COLLECTIVES
    assert tuple(RUNNERS) == choices.RUNNERS
    assert sorted(choices.TARGETS) == sorted(TARGETS)
    assert choices.EXECUTORS == EXECUTORS
    assert tuple(ELEMENT_TYPES) == choices.ELEMENT_TYPES


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("chorale l", ["lower", "lift"]),
        ("chorale bound a100:2 --coll", ["--collective"]),
        ("chorale topology s", ["show"]),
        ("chorale synth torus:4x4 --collective all", ["allgather", "allreduce", "alltoall"]),
        ("chorale --quiet synth hamil", ["hamiltonian-ring"]),
        ("chorale synth bfb hyperc", ["hypercube:3"]),
        ("chorale synth hyperc", ["hypercube:3"]),
        ("chorale run a.parquet --runner one", ["oneccl"]),
        ("chorale lower a.parquet --target=oneccl", ["--target=oneccl-xml"]),
        ("chorale lower a.parquet --target oneccl-xml --inp", ["--inplace"]),
        ("chorale run 'a b.parquet' --repeats 3 --dty", ["--dtype"]),
        ("chorale verify ", [""]),
        ("chorale nonsense ", [""]),
        ("chorale run 'unfinished", [""]),
    ],
)
def test_words(line: str, words: list[str]) -> None:
    assert complete(line) == words


def test_campaigns_of_the_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHORALE_HOME", str(tmp_path))
    assert complete("chorale campaign check ") == [""]
    assert not list(tmp_path.iterdir())
    for name in ("quickstart", "quick", "other"):
        (tmp_path / "campaigns" / name).mkdir(parents=True)
    assert complete("chorale campaign check q") == ["quick", "quickstart"]
    assert complete("chorale tune --follow o") == ["other"]


def test_each_shell_has_its_form() -> None:
    assert complete("chorale tok", "fish")[0].startswith("token\tMake, list and revoke tokens")
    assert complete("chorale tok", "zsh")[0].startswith("""_arguments '*: :(("token":"Make, list""")
    assert complete("chorale verify ", "zsh") == ["_files"]
    assert completion_output({"_CHORALE_COMPLETE": "complete_fish", "_TYPER_COMPLETE_FISH_ACTION": "is-args"})[1] == 0


def test_a_tab_imports_neither_commands_nor_libraries() -> None:
    environment = {"_CHORALE_COMPLETE": "complete_bash", "COMP_WORDS": "chorale synth --coll", "COMP_CWORD": "2"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stdout == "--collective\n"
    modules = done.stderr.split()
    assert not {"typer", "click", "numpy", "rich", "chorale.tuner.cli.main"} & set(modules)
    assert len(modules) < MOST_MODULES
