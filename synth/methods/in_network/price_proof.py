"""Certificates of prices, from the multipliers of a linear program over trees."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from chorale.synth.bounds.price_certificate import KIND, time_by_prices
from chorale.synth.errors import CheckFailed
from chorale.synth.methods.alltoall.rate import integer_prices
from chorale.synth.sparse_matrix import Floats
from chorale.synth.topology.topology import Topology


def price_certificate(topology: Topology, prices: Floats, sum_prices: Mapping[int, float]) -> Mapping[str, Any] | None:
    """Return the certificate of these prices of links and of sums at adders with a limit, in whole numbers.

    None where a check would compare too many trees.
    """
    switches = sorted(sum_prices)
    whole = integer_prices(np.append(prices, [sum_prices[switch] for switch in switches])).tolist()
    certificate = {
        "kind": KIND,
        "prices": whole[: len(prices)],
        "sum_prices": {topology.node_ids[s]: price for s, price in zip(switches, whole[len(prices) :], strict=True)},
    }
    try:
        time = time_by_prices(topology, certificate["prices"], certificate["sum_prices"])
    except CheckFailed:
        return None
    return certificate | {"time_per_byte": str(time)}
