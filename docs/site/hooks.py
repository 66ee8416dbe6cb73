"""What the site adds to the written pages when it is built: the reference of the command and of the HTTP API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from http_reference import http_page, openapi_document  # beside this file
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from typer.cli import get_docs_for_click

from chorale.tuner.cli.main import command_line


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the decisions to the navigation, then whatever page has no place in it yet."""
    pages = {page.relative_to(config.docs_dir).as_posix() for page in Path(config.docs_dir).rglob("*.md")}
    decisions = sorted(page for page in pages if page.startswith("decisions/"))
    others = sorted(pages - set(decisions) - set(_named(config.nav)))
    config.nav = [*config.nav, {"Decisions": decisions}, *([{"More": others}] if others else [])]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made from the code, so that they cannot differ from it."""
    openapi = openapi_document()
    made = {
        "reference/cli.md": command_page(),
        "reference/http.md": http_page(openapi),
        "reference/openapi.json": json.dumps(openapi, indent=1),
    }
    for path, content in made.items():
        files.append(File.generated(config, path, content=content))
    return files


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
