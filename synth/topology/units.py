"""What a unit of bandwidth means in bytes and seconds."""

from __future__ import annotations

from collections.abc import Mapping

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.topology import Topology

_BYTES_PER_SECOND: Mapping[str, int] = {"GB/s": 10**9, "Gbit/s": 125 * 10**6}


def bytes_per_second(topology: Topology) -> int:
    """Return the bytes per second of a link of bandwidth 1.

    Raises InvalidInput where bandwidths count links: such a network says how links compare, not how fast they are,
    so that bytes and latencies in seconds do not meet.
    """
    unit = topology.bandwidth_unit
    if unit not in _BYTES_PER_SECOND:
        rule = "a size in bytes needs bandwidths in GB/s or Gbit/s"
        way_out = "describe the network in a file with one of these units, or leave out the size"
        raise InvalidInput(rule, f'{topology.spec}, whose unit is "{unit}"', way_out)
    return _BYTES_PER_SECOND[unit]
