"""HTML pages from templates: what goes in is escaped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined


def render_html(template: Path, **values: Any) -> str:
    """Return the page that the Jinja template in the file `template` makes of `values`, all of which must be given."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    return environment.from_string(template.read_text(encoding="utf-8")).render(values)
