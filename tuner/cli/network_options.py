"""The options of commands that simulate: what messages cost."""

from __future__ import annotations

from typing import Annotated

import typer

AlphaUs = Annotated[
    str | None, typer.Option(help="Microseconds from when a message could start until it does; default: 0.")
]
LinkLatencyUs = Annotated[str | None, typer.Option(help="Microseconds for which a bit is on a link; default: 0.1.")]
HopUs = Annotated[str | None, typer.Option(help="Microseconds for which a node handles a packet; default: 0.3.")]
LinkGbps = Annotated[
    str | None, typer.Option(help="Gbit/s of a link of capacity 1; needed where a spec gives no bandwidths.")
]
CalibrationFile = Annotated[
    str | None, typer.Option(metavar="FILE", help="JSON of `run --calibrate --json`, instead of rates and latencies.")
]
