"""HTML pages from Jinja templates; values are escaped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined


def render_html(template: Path, **values: Any) -> str:
    """Return the page of the Jinja template in the file `template`; a value that the template misses is an error."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    return environment.from_string(template.read_text(encoding="utf-8")).render(values)
