"""Every `chorale` command of every page does what the page says; the Python of the README and of its page runs."""

import contextlib
import re
from pathlib import Path

import pytest

from chorale.tuner.cli.main import command_line
from tests.command import Finished, chorale, python
from tests.docs.pages import DOCS, PAGES, ROOT, SLOW, WITHOUT_RAY, Command, commands_of, named_files
from tests.soak.launches import without_workers


def pages_with_commands(slow: bool) -> list[str]:
    pages = [page for page in PAGES if (page in SLOW) == slow]
    return [page for page in pages if commands_of((DOCS / page).read_text())]


def run(command: Command, capsys: pytest.CaptureFixture[str], with_ray: bool = True) -> Finished:
    """Run `command` here; where it starts a Ray cluster, in a process of its own."""
    measures = command.words[0] == "tune" and not {"--dry-run", "--schema"} & set(command.words)
    if measures and with_ray and command.refusal is None:
        return python("-m", "chorale", *command.words, code=None, folder=Path.cwd())
    done = chorale(capsys, *command.words)
    if command.output is not None:
        Path(command.output).write_text(done.stdout)
    return done


def follow(page: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """Do what the page says in an empty folder."""
    monkeypatch.chdir(folder)
    (folder / "data").mkdir(mode=0o700)
    monkeypatch.setenv("CHORALE_HOME", str(folder / "data"))
    text = (DOCS / page).read_text()
    for name, content in named_files(text):
        (folder / name).write_text(content)
    for command in commands_of(text):
        if command.reason_not_to_run is not None:
            require_known_words(command)
            continue
        with contextlib.nullcontext() if page not in WITHOUT_RAY else without_workers():
            finished = run(command, capsys, page not in WITHOUT_RAY)
        if command.refusal is None:
            assert finished.code == 0, f"{page}: {command.text}\n{finished.stdout[-500:]}\n{finished.stderr[-2000:]}"
        else:
            assert finished.code in (1, 2, 3), f"{page}: {command.text}"
            pattern = ".*".join(re.escape(part) for part in re.split(" ?…", command.refusal))  # `…` stands for more
            last = finished.stderr.strip().splitlines()[-1]
            assert re.fullmatch(pattern, last), f"{command.refusal}\n{finished.stderr}"


def require_known_words(command: Command) -> None:
    """Check the subcommand and every option of a command that is not run."""
    group = command_line()
    context = group.make_context("chorale", ["-q", command.words[0]], resilient_parsing=True)
    words = command.words
    while hasattr(group, "commands"):
        assert words[0] in group.commands, command.text
        group, words = group.commands[words[0]], words[1:]
    if "--" in words:
        words = [*words[: words.index("--") + 1], "true"]
    with context:
        group.make_context(group.name, list(words))


@pytest.mark.parametrize("page", pages_with_commands(slow=False))
def test_the_page(page, tmp_path, monkeypatch, capsys):
    follow(page, tmp_path, monkeypatch, capsys)


@pytest.mark.ray
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("page", pages_with_commands(slow=True))
def test_the_slow_page(page, tmp_path, monkeypatch, capsys):
    follow(page, tmp_path, monkeypatch, capsys)


def test_make_commands_of_the_pages_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(DOCS / page for page in PAGES)):
        for target in re.findall(r"^make ([a-z-]+)", page.read_text(), re.MULTILINE):
            assert target in targets, f"{page.name}: make {target}"


def test_a_block_gives_its_commands_and_refusals():
    elsewhere = "```sh\nchorale elsewhere\n```\n"
    here = "chorale verify a.json --json > b.json  # checks\nchorale run x \\\n  --json\nchorale: no, got x; y\n"
    text = f"{elsewhere}Text.\n```\n{here}```\n"
    first, second = commands_of(text)
    assert (first.words, first.output, first.refusal) == (["verify", "a.json", "--json"], "b.json", None)
    assert (second.words, second.refusal) == (["run", "x", "--json"], "chorale: no, got x; y")


README = ROOT / "README.md"


def test_the_readme(tmp_path, monkeypatch, capsys, home):
    """It says everything within two screens; its commands are some of those of the first hour, and its Python runs."""
    monkeypatch.chdir(tmp_path)
    text = README.read_text()
    assert len(text.splitlines()) <= 90
    first_hour = [command.text for command in commands_of((ROOT / "docs/guide/first-hour.md").read_text())]
    commands = [command.text for command in commands_of(text)]
    assert [line.split()[1] for line in commands] == ["synth", "verify", "run", "lower", "table"]
    assert set(commands) <= set(first_hour)  # tests/docs/test_pages.py runs those
    [code] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(compile(code, "README.md", "exec"), {})  # our own documentation
    method, algbw, gap = capsys.readouterr().out.split()
    assert f"# {method} {algbw[:5]}… {gap}: nothing can be faster" in code
    assert Path("allreduce.xml").read_text().startswith("<algo")


def python_of_the_page() -> list[str]:
    """Return the blocks of docs/guide/python.md, which are one program."""
    page = (ROOT / "docs" / "guide" / "python.md").read_text()
    return re.findall(r"```python\n(.*?)```", page, re.DOTALL)


def starts_a_cluster(code: str) -> bool:
    return "ch.tune(" in code


def test_the_python_page(capsys, home, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    codes = [code for code in python_of_the_page() if not starts_a_cluster(code)]
    assert len(codes) >= 3
    names: dict[str, object] = {}
    printed = []
    for code in codes:
        exec(compile(code, "docs/guide/python.md", "exec"), names)  # our own documentation
        printed.append(capsys.readouterr().out.splitlines())
    assert printed[0][:2] == ["8 15/8", "<algo 2"]
    assert printed[-1] == ["True", "True"]


@pytest.mark.ray
@pytest.mark.timeout(600)
def test_the_whole_python_page(home, tmp_path):
    codes = python_of_the_page()
    assert sum(map(starts_a_cluster, codes)) == 2
    done = python("-c", "\n".join(codes), folder=tmp_path, timeout_s=560)
    assert {"bfb", "ring"} & set(re.findall(r"\w+", done.stdout))
