"""Options of commands that write, simulate and run programs: element types, targets, what messages cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer

from chorale.runners.api.elements import ELEMENT_TYPES
from chorale.synth.names import name_among
from chorale.synth.targets.registry import target_named
from chorale.synth.topology.topology import Topology
from chorale.tuner.cli.options import offer
from chorale.tuner.cli.output import people
from chorale.tuner.costs.pricing import Pricing

UNIT_LINK_GBPS = "100"
"""Rate of a link of capacity 1 for commands in which --link-gbps may be left out."""
_ALIASES = {"fp32": "float32", "fp64": "float64", "double": "float64", "half": "float16", "fp16": "float16"}


def target_name(text: str) -> str:
    """Return the target that `text` means."""
    return target_named(text).name


def element_type(text: str) -> str:
    """Return the element type that `text` means."""
    return name_among("element type", text, ELEMENT_TYPES, _ALIASES | {"bf16": "bfloat16", "float": "float32"})


Protocol = Annotated[str, typer.Option(help="Wire protocol: Simple, LL or LL128.")]
ElementTypeName = Annotated[
    str,
    typer.Option(
        metavar="TYPE",
        parser=element_type,
        autocompletion=offer(ELEMENT_TYPES),
        help=f"Element type: {', '.join(ELEMENT_TYPES)}.",
    ),
]
PredictedSize = Annotated[str | None, typer.Option(metavar="BYTES", help="Also predict the time at this buffer size.")]
# What messages cost, of commands that simulate.
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
    """Return the pricing by `options`; print the rate of links that is assumed if none is given."""
    if topology.bandwidth_unit == "link" and calibration is None and options["link_gbps"] is None:
        people.print(f"links of capacity 1 are taken to have {UNIT_LINK_GBPS} Gbit/s; --link-gbps says another rate")
        options = {**options, "link_gbps": UNIT_LINK_GBPS}
    return Pricing.of(options, calibration)
