"""Modules, names and files of the repository that the written pages mention are there."""

import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, PAGES, ROOT

WRITTEN = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *(DOCS / page for page in PAGES)]
PARTS = "synth|runners|job|tuner|experiments|design|live"
FOLDERS = "synth|runners|job|tuner|experiments|chorale|tests|docs|deploy|examples"
MADE_BY_READERS = {"deploy/secrets", "deploy/secrets/tokens.yaml", "deploy/secrets/postgres.env"}
MADE_BY_READERS |= {"job/README.md", "job/executor-mpirun", "job/executor-srun"}
"""Files that a page tells to make, in a folder of the repository or in one of the same name."""


def dotted_names(text: str) -> set[str]:
    """Return the dotted names of modules in code; `chorale.…` is also how tags in MLflow begin."""
    spans = re.findall(r"`([^`\n]+)`", text)
    return {name for code in spans for name in re.findall(rf"(?<![\w.])chorale\.(?:{PARTS})\b(?:\.\w+)*", code)}


def repository_paths(text: str) -> set[str]:
    """Return the paths in code spans and blocks that begin with a folder of the repository."""
    code = "\n".join(
        [*re.findall(r"`([^`\n]+)`", text), *re.findall(r"^```.*?\n(.*?)^```", text, re.DOTALL | re.MULTILINE)]
    )
    return {path.rstrip(".") for path in re.findall(rf"(?<![\w./~$-])((?:{FOLDERS})/[\w./*-]*)", code)}


def links_to_names(page: Path) -> Iterator[tuple[str, Path]]:
    """Yield the names that a page links to a Python file, and that file."""
    for name, target in re.findall(r"\[`([\w.]+)`\]\(([^)]+\.py)\)", page.read_text()):
        yield name, (page.parent / target).resolve()


def exists(dotted: str) -> bool:
    """Whether a dotted name is a module, or an attribute of one, at any depth."""
    try:
        pkgutil.resolve_name(dotted)
    except (ImportError, AttributeError):
        return False
    return True


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.name)
def test_names_and_paths_exist(page):
    text = page.read_text()
    assert not [name for name in sorted(dotted_names(text)) if not exists(name)]
    missing = [path for path in sorted(repository_paths(text) - MADE_BY_READERS) if not list(ROOT.glob(path))]
    assert not missing


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.name)
def test_links_out_of_the_site_lead_to_what_they_say(page):
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        path = (page.parent / target).resolve()
        assert path.exists() or path.is_relative_to(DOCS), target  # those inside are checked where the site is built
    for name, file in links_to_names(page):
        last = name.rpartition(".")[2]
        assert re.search(rf"^\s*(?:(?:async def|def|class) {last}\b|{last}\b.* = )", file.read_text(), re.MULTILINE), (
            name
        )


def test_the_checks_see_what_is_missing():
    text = "`chorale.synth.nowhere.name` and `chorale.synth.Options`\n```\nls synth/nowhere.py docs/site\n```\n"
    assert [exists(name) for name in sorted(dotted_names(text))] == [True, False]
    assert repository_paths(text) == {"synth/nowhere.py", "docs/site"}
    assert len(list(links_to_names(DOCS / "contributing" / "architecture.md"))) > 60
