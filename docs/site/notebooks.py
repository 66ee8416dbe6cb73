"""Execute the notebooks of the documentation and turn them into pages. Run as a script to store their outputs.

A cell may do what plain Python does; what its last line evaluates to is shown as notebooks show it, by `_repr_html_`,
`_repr_svg_` or `repr`. No kernel is needed, and nothing but the standard library.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "notebooks"


def executed(notebook: dict[str, Any]) -> dict[str, Any]:
    """Return `notebook` with the outputs that its code cells produce when they run in order."""
    names: dict[str, Any] = {"__name__": "__main__"}
    cells = []
    for index, cell in enumerate(notebook["cells"]):
        if cell["cell_type"] != "code":
            cells.append(cell)
            continue
        outputs = _outputs("".join(cell["source"]), f"cell {index}", names)
        cells.append({**cell, "outputs": outputs, "execution_count": None})
    return {**notebook, "cells": cells}


def page(notebook: dict[str, Any]) -> str:
    """Return the notebook as Markdown, with drawings as they are."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            html = data.get("text/html") or data.get("image/svg+xml")
            text = "".join(output.get("text", data.get("text/plain", [])))
            parts.append(f"<div>{''.join(html)}</div>" if html else f"```text\n{text.rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def _outputs(source: str, name: str, names: dict[str, Any]) -> list[dict[str, Any]]:
    tree = ast.parse(source, name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, name, "exec"), names)  # noqa: S102 - the documentation's own
        value = eval(compile(ast.Expression(last.value), name, "eval"), names) if last else None  # noqa: S307
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        text = printed.getvalue().splitlines(keepends=True)
        outputs.append({"output_type": "stream", "name": "stdout", "text": text})
    if value is not None:
        outputs.append({"output_type": "execute_result", "metadata": {}, "execution_count": None, "data": _data(value)})
    return outputs


def _data(value: Any) -> dict[str, list[str]]:
    data = {"text/plain": [repr(value)]}
    for key, method in (("text/html", "_repr_html_"), ("image/svg+xml", "_repr_svg_")):
        shown = getattr(value, method, lambda: None)()
        if shown:
            return data | {key: [shown[shown.index("<svg") :] if "<svg" in shown else shown]}
    return data


def main() -> None:
    """Execute every notebook and write its outputs into it."""
    for path in sorted(FOLDER.glob("*.ipynb")):
        notebook = executed(json.loads(path.read_text(encoding="utf-8")))
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        sys.stdout.write(f"{path.name}\n")


if __name__ == "__main__":
    main()
