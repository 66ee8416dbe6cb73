"""The picture of the step times, from the figures of the demo."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

_TITLES = {"ddp": "DDP", "fsdp2": "FSDP2"}


def step_picture(document: Mapping[str, Any], path: Path) -> None:
    """Draw the seconds of a training step with each backend, for every kind of training in `document`."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - it takes half a second to import

    parts = {document["training"]: document} | {name: document[name] for name in _TITLES if name in document}
    figure = Figure(figsize=(6.4, 0.9 + 0.9 * len(parts)), layout="constrained")
    axes = figure.add_subplot()
    for row, figures in enumerate(parts.values()):
        for shift, backend, colour in ((0.2, "gloo", "#9aa5b1"), (-0.2, "chorale", "#2b6cb0")):
            seconds = figures["step_s"][backend]
            label = backend if row == 0 else None
            axes.barh(row - shift, seconds, 0.36, color=colour, label=label)
            axes.text(seconds, row - shift, f" {seconds:.2f} s", va="center", fontsize=9)
    axes.set_yticks(range(len(parts)), [_TITLES[name] for name in parts])
    axes.invert_yaxis()
    axes.set_xlabel(f"seconds per training step, {document['network']}, links of {document['link_mbps']} Mbit/s")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    axes.margins(x=0.12)
    figure.savefig(path, metadata={"Date": None})
