"""HTML pages and shell scripts from Jinja templates; values of pages are escaped."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any


def render_html(template: Path, **values: Any) -> str:
    """Return the page of the Jinja template in the file `template`; a value that the template misses is an error."""
    return _rendered(template, values, autoescape=True)


def render_script(template: Path, **values: Any) -> str:
    """Render the shell script of the Jinja template in the file `template`; its filter `quote` quotes words for a
    shell.
    """
    return _rendered(template, values, autoescape=False)


def _rendered(template: Path, values: dict[str, Any], autoescape: bool) -> str:
    from jinja2 import Environment, StrictUndefined  # noqa: PLC0415 - designing and exporting do without it

    environment = Environment(
        autoescape=autoescape,  # noqa: S701 - a script is no page: nothing is escaped
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["quote"] = shlex.quote
    return environment.from_string(template.read_text(encoding="utf-8")).render(values)
