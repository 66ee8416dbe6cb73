"""The options of commands that simulate: what messages cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer

from chorale.synth.topology.topology import Topology
from chorale.tuner.cli.output import people
from chorale.tuner.costs.pricing import Pricing

UNIT_LINK_GBPS = "100"
"""The rate of a link of capacity 1, for commands that need none to be given."""

AlphaUs = Annotated[
    str | None, typer.Option(help="Microseconds from when a message could start until it does; default: 0.")
]
LinkLatencyUs = Annotated[str | None, typer.Option(help="Microseconds for which a bit is on a link; default: 0.1.")]
HopUs = Annotated[str | None, typer.Option(help="Microseconds for which a node handles a packet; default: 0.3.")]
LinkGbps = Annotated[
    str | None,
    typer.Option(help="Gbit/s of a link of capacity 1 (--link-mbps: Mbit/s); needed where a spec gives no bandwidths."),
]
CalibrationFile = Annotated[
    str | None, typer.Option(metavar="FILE", help="JSON of `run --calibrate --json`, instead of rates and latencies.")
]


def pricing_of(topology: Topology, options: Mapping[str, str | None], calibration: str | None) -> Pricing:
    """Return the pricing by `options`; where the rate of links is not given, print which one is taken."""
    if topology.bandwidth_unit == "link" and calibration is None and options["link_gbps"] is None:
        people.print(f"links of capacity 1 are taken to have {UNIT_LINK_GBPS} Gbit/s; --link-gbps says another rate")
        options = {**options, "link_gbps": UNIT_LINK_GBPS}
    return Pricing.of(options, calibration)
