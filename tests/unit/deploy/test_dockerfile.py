"""The structure of the Dockerfile: what can go wrong without a build being tried."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "deploy" / "Dockerfile").read_text()
KNOWN = {"FROM", "ENV", "RUN", "WORKDIR", "COPY", "USER", "EXPOSE", "CMD"}


def instructions() -> list[tuple[str, str]]:
    """Return (instruction, arguments), with continued lines joined and comments left out."""
    lines = "\n".join(line for line in TEXT.splitlines() if not line.lstrip().startswith("#"))
    joined = re.sub(r"\\\n\s*", " ", lines)
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in joined.splitlines() if line]


def arguments_of(wanted: str) -> list[str]:
    return [arguments for instruction, arguments in instructions() if instruction == wanted]


def test_only_known_instructions_and_two_stages_on_exact_bases_without_root():
    assert {instruction for instruction, _ in instructions()} == KNOWN
    assert len(arguments_of("FROM")) == 2
    for base in arguments_of("FROM"):
        image = base.split(" ")[0]
        assert re.fullmatch(r"python:3\.11\.\d+-slim-bookworm", image)
    (user,) = arguments_of("USER")
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)
    last = [instruction for instruction, _ in instructions()]
    assert "RUN" not in last[last.index("USER") :]


def test_everything_that_is_copied_exists_and_is_let_through():
    ignored = (ROOT / "deploy" / "Dockerfile.dockerignore").read_text().splitlines()
    let_through = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    copied = set()
    for copy in arguments_of("COPY"):
        *sources, _ = copy.split(" ")
        if not sources[0].startswith("--from="):
            copied |= set(sources)
    assert copied == let_through
    assert all((ROOT / source).exists() for source in copied)
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]["include"]
    assert {package.rstrip("*") for package in packages} <= copied
    assert set(re.findall(r'ROOT / "(\w+)"', (ROOT / "setup.py").read_text())) <= copied


def test_what_is_installed_is_pinned_and_a_compiler_is_there_for_the_kernels():
    installs = [part for run in arguments_of("RUN") for part in run.split("&&") if "pip install" in part]
    assert len(installs) == 3
    for install in installs:
        assert "--constraint constraints.txt" in install or "--no-deps" in install
    assert not re.search(r"index-url|https?://|trusted-host|:latest", TEXT)
    runs = arguments_of("RUN")
    compiler = next(position for position, run in enumerate(runs) if "apt-get install" in run and "g++" in run)
    [built] = [position for position, run in enumerate(runs) if "--force-reinstall ." in run]
    assert compiler < built
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (wanted,) = re.findall(r"'\.\[([a-z0-9,]+)\]'", TEXT)
    assert set(wanted.split(",")) <= set(extras)
    for name in ("postgres", "s3"):
        assert name in wanted.split(",")
        (requirement,) = extras[name]
        assert pinned(re.split(r"[\[>]", requirement)[0])


def pinned(package: str) -> str:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines)[package]
