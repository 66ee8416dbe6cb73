"""Links in canonical order from columns, where bandwidths and latencies are already classes of few values."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.topology.links import Links

Column = NDArray[np.integer]


class Rates(NamedTuple):
    """Dictionary-encoded bandwidths and latencies: the rate of link i is `bandwidths[bandwidth_class[i]]`."""

    bandwidth_class: Column
    bandwidths: tuple[Fraction, ...]
    latency_class: Column
    latencies_s: tuple[Fraction, ...]


def sorted_links(src: Column, dst: Column, rates: Rates) -> Links:
    """Return links in canonical order; the tables of `rates` must ascend and hold used values only. O(L log L)."""
    order = np.lexsort((rates.latency_class, -rates.bandwidth_class, src, dst))
    return Links(
        src=src[order].astype(np.int32),
        dst=dst[order].astype(np.int32),
        bandwidth_class=rates.bandwidth_class[order].astype(np.int32),
        bandwidths=rates.bandwidths,
        latency_class=rates.latency_class[order].astype(np.int32),
        latencies_s=rates.latencies_s,
    )
