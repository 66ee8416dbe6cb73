"""What shells complete: names of commands, options, and values that are known."""

import re
from pathlib import Path

import pytest

from chorale.tuner.cli.main import main


@pytest.fixture
def complete(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """Return a function from a line, whose last word is completed, to what a shell gets."""

    def completed(line: str, shell: str = "bash") -> list[str]:
        words = re.findall(r"'[^']*'|\S+", line)
        monkeypatch.setenv("_CHORALE_COMPLETE", f"complete_{shell}")
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("_TYPER_COMPLETE_ARGS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(words) if line.endswith(" ") else len(words) - 1))
        with pytest.raises(SystemExit):
            main([])
        return capsys.readouterr().out.split()

    return completed


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("chorale l", ["lower", "lift"]),
        ("chorale bound a100:2 --coll", ["--collective", "--collective"]),
        ("chorale topology s", ["show"]),
        ("chorale synth torus:4x4 --collective all", ["allgather", "allreduce", "alltoall"]),
        ("chorale --quiet synth hamil", ["hamiltonian-ring"]),
        ("chorale synth bfb hyperc", ["hypercube:3"]),
        ("chorale synth hyperc", ["hypercube:3"]),
        ("chorale run a.parquet --runner one", ["oneccl"]),
        ("chorale lower a.parquet --target=oneccl", ["oneccl-xml"]),
        ("chorale lower a.parquet --target oneccl-xml --inp", ["--inplace"]),
        ("chorale run 'a b.parquet' --repeats 3 --dty", ["--dtype"]),
        ("chorale verify ", []),
    ],
)
def test_words(line: str, words: list[str], complete) -> None:
    assert sorted(set(complete(line))) == sorted(set(words))


def test_campaigns_of_the_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, complete) -> None:
    monkeypatch.setenv("CHORALE_HOME", str(tmp_path))
    assert complete("chorale campaign check ") == []
    assert not list(tmp_path.iterdir())
    for name in ("quickstart", "quick", "other"):
        (tmp_path / "campaigns" / name).mkdir(parents=True)
    assert complete("chorale campaign check q") == ["quick", "quickstart"]
    assert complete("chorale tune --follow o") == ["other"]


def test_other_shells(complete) -> None:
    assert "token" in " ".join(complete("chorale tok", "zsh"))
