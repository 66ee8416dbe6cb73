"""Every `chorale` command of every page of the site does what the page says, in the order of the page."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from chorale.tuner.cli.main import command_line, main
from tests.command import Finished, chorale
from tests.docs.pages import DOCS, PAGES, ROOT, SLOW, WITHOUT_RAY, Command, commands_of, named_files
from tests.dumps import nvswitch_machine
from tests.soak.launches import without_workers

FILES_BEFORE = (
    "synth bfb torus:2x4 --collective allreduce -o torus.parquet",
    "synth bfb torus:2x4 --collective allreduce -o torus.json",
    "synth ring torus:2x4 --collective allreduce -o ring.parquet",
    "synth ring ring:4 --collective allreduce -o ring4.json",
    "synth forest a100:2 -o a100.parquet",
)
"""What the reader of a page made before, of earlier pages."""
MORE_BEFORE = {
    "guide/programs.md": (
        "synth forest h100:1 --collective allreduce -o theirs.parquet",
        "lower theirs.parquet --target msccl-xml -o theirs.xml",
        "lower theirs.parquet --target mscclpp-json -o plan.json",
    ),
    "guide/training.md": (
        "run torus.parquet --runner local --link-mbps 25 --sizes 64KiB --calibrate --json > fit.json",
    ),
}
CAMPAIGN_WITH_AN_ERROR = "name: x\ntopology: ring:4\ncolective: allreduce\n"


def pages_with_commands(slow: bool) -> list[str]:
    pages = [page for page in PAGES if (page in SLOW) == slow]
    return [page for page in pages if commands_of((DOCS / page).read_text())]


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    """Return the folder of somebody who has read up to here; each page gets a copy."""
    folder = tmp_path_factory.mktemp("desk")
    shutil.copytree(ROOT / "examples", folder / "examples")
    (folder / "dump.xml").write_bytes(nvswitch_machine())
    shutil.copy(ROOT / "tests" / "data" / "results" / "all_reduce-nccl.log", folder / "all_reduce.log")
    for name, source in (("fabric.txt", "ib-rails.txt"), ("topo.txt", "b200-good.txt")):
        shutil.copy(ROOT / "tests" / "data" / "machines" / source, folder / name)
    (folder / "broken.json").write_text('{"nodes": []}')
    (folder / "broken.yaml").write_text(CAMPAIGN_WITH_AN_ERROR)
    profile = re.findall(r"```json\n(.*?)```", (DOCS / "guide/training.md").read_text(), re.DOTALL)[0]
    (folder / "my_model.json").write_text(profile)
    with contextlib.chdir(folder):
        for line in FILES_BEFORE:
            succeed(["--quiet", *shlex.split(line)])
    return folder


def succeed(words: list[str]) -> None:
    """Run `chorale`; a failure goes through to the test."""
    try:
        main(words)
    except SystemExit as stop:
        if stop.code:
            raise


def run(command: Command, capsys: pytest.CaptureFixture[str], with_ray: bool = True) -> Finished:
    """Run `command` here; where it starts a Ray cluster, in a process of its own."""
    measures = command.words[0] == "tune" and not {"--dry-run", "--schema"} & set(command.words)
    if measures and with_ray and command.refusal is None:
        arguments = [sys.executable, "-m", "chorale", *command.words]
        environment = dict(os.environ) | {"PYTHONPATH": str(ROOT)}
        done = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=200, check=False)
        return Finished(done.returncode, done.stdout, done.stderr)
    done = chorale(capsys, *command.words)
    if command.output is not None:
        Path(command.output).write_text(done.stdout)
    return done


def follow(page: str, desk: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    shutil.copytree(desk, folder)
    monkeypatch.chdir(folder)
    (folder / "data").mkdir(mode=0o700)
    monkeypatch.setenv("CHORALE_HOME", str(folder / "data"))
    text = (DOCS / page).read_text()
    for line in MORE_BEFORE.get(page, ()):
        assert run(Command(f"chorale {line}", None), capsys).code == 0, line
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
            assert_is_printed(command.refusal, finished.stderr)


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


def assert_is_printed(line: str, stderr: str) -> None:
    """Check that `line` is the last one printed; `…` in it stands for more."""
    pattern = ".*".join(re.escape(part) for part in re.split(" ?…$", line))
    assert re.fullmatch(pattern, stderr.strip().splitlines()[-1]), f"{line}\n{stderr}"


@pytest.mark.parametrize("page", pages_with_commands(slow=False))
def test_the_page(page, desk, tmp_path, monkeypatch, capsys):
    follow(page, desk, tmp_path / "reader", monkeypatch, capsys)


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", pages_with_commands(slow=True))
def test_the_slow_page(page, desk, tmp_path, monkeypatch, capsys):
    follow(page, desk, tmp_path / "reader", monkeypatch, capsys)


def test_make_commands_of_the_pages_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(DOCS / page for page in PAGES)):
        for target in re.findall(r"^make ([a-z-]+)", page.read_text(), re.MULTILINE):
            assert target in targets, f"{page.name}: make {target}"


def test_a_block_gives_its_commands_and_refusals():
    elsewhere = "```sh\nchorale elsewhere\n```\n"
    here = "chorale verify a.json --json > b.json  # checks\nchorale run x \\\n  --json\nchorale: no; got x; y\n"
    text = f"{elsewhere}Text.\n```\n{here}```\n"
    first, second = commands_of(text)
    assert (first.words, first.output, first.refusal) == (["verify", "a.json", "--json"], "b.json", None)
    assert (second.words, second.refusal) == (["run", "x", "--json"], "chorale: no; got x; y")
