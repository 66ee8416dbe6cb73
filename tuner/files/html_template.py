"""HTML pages and shell scripts from Jinja templates; values of pages are escaped."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined


def render_html(template: Path, **values: Any) -> str:
    """Return the page of the Jinja template in the file `template`; a value that the template misses is an error."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    return environment.from_string(template.read_text(encoding="utf-8")).render(values)


def render_script(template: Path, **values: Any) -> str:
    """Return the script of the Jinja template in the file `template`, whose filter `quote` makes words for a shell."""
    environment = Environment(  # noqa: S701 - a script is no page: nothing is escaped
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters["quote"] = shlex.quote
    return environment.from_string(template.read_text(encoding="utf-8")).render(values)
