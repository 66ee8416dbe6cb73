"""Times of a few schedules by size as bars, as SVG: without matplotlib, for the demo."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from chorale.runners.api.units import format_size
from chorale.tuner.reports.quantities import seconds_text

_COLOURS = ("#0f766e", "#f59e0b", "#64748b", "#7c3aed")
_WIDTH, _LEFT, _BAR, _GAP, _TOP = 640, 90, 16, 14, 34
_STYLE = "text{font:12px sans-serif;dominant-baseline:central;fill:#334155}.title{font-size:14px}"


def bars_svg(title: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a group of bars for each of `rows`, which have `size_bytes` and `times_us` by name.

    Bars of a group are as long as their times beside the longest of the group.
    """
    names = list(rows[0]["times_us"])
    body = [f'<text class="title" x="8" y="16">{escape(title)}</text>']
    y = float(_TOP)
    for row in rows:
        most = max(row["times_us"].values())
        middle = y + len(names) * _BAR / 2
        body.append(f'<text x="{_LEFT - 8}" y="{middle:.0f}" text-anchor="end">{format_size(row["size_bytes"])}</text>')
        for index, name in enumerate(names):
            time_us = row["times_us"][name]
            length = (_WIDTH - _LEFT - 190) * time_us / most
            shape = f'x="{_LEFT}" y="{y:.0f}" width="{length:.1f}" height="{_BAR - 2}"'
            body.append(f'<rect {shape} fill="{_COLOURS[index % len(_COLOURS)]}"/>')
            label = f"{name}, {seconds_text(time_us / 1e6)}"
            body.append(f'<text x="{_LEFT + length + 6:.1f}" y="{y + _BAR / 2:.0f}">{escape(label)}</text>')
            y += _BAR
        y += _GAP
    size = f'viewBox="0 0 {_WIDTH} {y:.0f}" width="{_WIDTH}" height="{y:.0f}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(title)}">'
    background = f'<rect width="{_WIDTH}" height="{y:.0f}" fill="#fff"/>'
    return f"{head}<style>{_STYLE}</style>{background}{''.join(body)}</svg>\n"
