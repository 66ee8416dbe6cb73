"""Figures as files: the same figure gives the same bytes."""

from __future__ import annotations

import io
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from chorale.tuner.files import write_file
from chorale.tuner.plots.plot_formats import require_plot_format

_NO_DATES: dict[str, dict[str, None]] = {
    "png": {"Software": None},
    "svg": {"Date": None},
    "pdf": {"CreationDate": None},
}


def write_figure(figure: Figure, path: Path, salt: str) -> None:
    """Write `figure` to `path` (.png, .svg or .pdf) without dates; `salt` makes the ids of an SVG repeatable.

    Raises InvalidInput for another extension.
    """
    require_plot_format(path)
    file_format = path.suffix.lower()[1:]
    content = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": salt}):
        figure.savefig(content, format=file_format, dpi=130, metadata=_NO_DATES[file_format])
    write_file(path, content.getvalue())
