"""Add generated pages to the site when it is built.

These are the references of the commands and of the HTTP API, and a copy of every repository file that a page links to.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from http_reference import http_page, openapi_document  # beside this file
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from notebooks import page as notebook_page  # beside this file
from typer.cli import get_docs_for_click

from chorale.tuner.cli.main import command_line

ROOT = Path(__file__).parents[2]
_OUTSIDE = re.compile(
    r"\]\((?:\.\./)+((?:synth|runners|job|tuner|experiments|chorale|tests|deploy|examples)(?:/[^)#\s]*)?|CONTRIBUTING\.md)\)"
)
"""A link from a page to a file or folder outside docs/, as it works on a code host."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add pages that the navigation does not list, under *More*."""
    pages = {page.relative_to(config.docs_dir).as_posix() for page in Path(config.docs_dir).rglob("*.md")}
    others = sorted(pages - set(_named(config.nav)))
    config.nav = [*config.nav, *([{"More": others}] if others else [])]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are generated from the code, so that they always agree with it."""
    openapi = openapi_document()
    made = {
        "reference/cli.md": command_page(),
        "reference/http.md": http_page(openapi),
        "reference/openapi.json": json.dumps(openapi, indent=1),
    }
    for path in sorted((ROOT / "docs/notebooks").glob("*.ipynb")):
        made[f"notebooks/{path.stem}.md"] = notebook_page(json.loads(path.read_text(encoding="utf-8")))
    for page in files.documentation_pages():
        for target in _OUTSIDE.findall(page.content_string):
            made[_copy_of(target)] = _source(ROOT / target)
    for path, content in made.items():
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links to files of the repository to the copies on the site."""
    up = "../" * page.file.src_uri.count("/")
    return _OUTSIDE.sub(lambda link: f"]({up}{_copy_of(link[1])})", markdown)


def _copy_of(target: str) -> str:
    """Return the path on the site of the file or folder `target`, which is stored as text so that browsers show it."""
    return f"source/{target.rstrip('/')}.txt"


def _source(path: Path) -> str:
    """Return the content of a file, or the names of the files in a folder."""
    if path.is_file():
        return path.read_text()
    return "".join(f"{entry.name}\n" for entry in sorted(path.iterdir()) if not entry.name.startswith(("_", ".")))


def command_page() -> str:
    """Return the reference of every command, from the same declarations that `--help` prints."""
    command = command_line()
    text = get_docs_for_click(obj=command, ctx=typer.Context(command), name="chorale")
    return text.replace("# `chorale`", "# The command line", 1)


def _named(nav: Any) -> Iterator[str]:
    """Yield the paths that a navigation names, at any depth."""
    for entry in nav if isinstance(nav, list) else [nav]:
        if isinstance(entry, dict):
            for value in entry.values():
                yield from _named(value)
        else:
            yield entry
