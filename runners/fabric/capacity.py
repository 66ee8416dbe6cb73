"""Refuses fabrics whose links have more than this machine's CPU can carry."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

from chorale.runners.environment import environment_id, machine_facts
from chorale.runners.fabric.plan import plan_fabric
from chorale.runners.fabric.probe import probe
from chorale.runners.rate_cache import read_probe_cache, write_probe_cache
from chorale.synth.errors import InvalidInput
from chorale.synth.topology.topology import Topology

MIN_EFFICIENCY = 0.8

_TRIES = 2
_RESERVE = 2  # whoever uses the links needs about as much time of the CPU again as the links themselves
_CACHE_NAME = "fabric-rates.json"
_METHOD = "streams over all links at twice their rate"  # part of the key: what another way of probing found is void
_RATES_MBPS = tuple(Fraction(mantissa * 10**power, 10) for power in range(6) for mantissa in (1, 2, 5))


def require_capacity(topology: Topology, link_mbps: Fraction, name: str, home: Path) -> None:
    """Raise InvalidInput, with a rate that would do, if this machine does not carry such a fabric.

    It does if links of twice the rate keep 80 % of it while all are busy. What was carried is remembered under `home`
    per kind of machine, nodes and links; a refusal is always measured anew, twice, because others may be using the
    machine too. Takes a few seconds if it is not known.
    """
    wanted = plan_fabric(topology, link_mbps, name).bits_per_s
    machine = environment_id(dict(machine_facts(), method=_METHOD))
    network = f"{topology.node_count} nodes, {len(topology.links)} links"
    cache = read_probe_cache(home / _CACHE_NAME)
    if cache.get(machine, {}).get(network, 0) >= wanted:
        return
    efficiency = 0.0
    for _ in range(_TRIES):
        efficiency = max(efficiency, probe(topology, _RESERVE * link_mbps, name).efficiency)
        if efficiency >= MIN_EFFICIENCY:
            break
    else:
        raise _beyond(efficiency, wanted, link_mbps)
    cache.setdefault(machine, {})[network] = wanted
    write_probe_cache(home / _CACHE_NAME, cache)


def _beyond(efficiency: float, wanted: int, link_mbps: Fraction) -> InvalidInput:
    rule = f"this machine carries about {efficiency * wanted / 1e6:.0f} Mbit/s over all links of such a fabric together"
    fitting = _round_down(link_mbps * Fraction(efficiency))
    way_out = f"take --link-mbps {float(fitting):g}, or --force to bring it up all the same"
    return InvalidInput(rule, f"{wanted / 1e6:.0f} Mbit/s", way_out)


def _round_down(link_mbps: Fraction) -> Fraction:
    """Return the largest 1, 2, 5 x 10^n Mbit/s up to `link_mbps`, or the smallest there is."""
    return max([rate for rate in _RATES_MBPS if rate <= link_mbps], default=_RATES_MBPS[0])
