"""Check what pairs of trees cannot beat, with code that shares nothing with the linear program.

Roots of rate x, out-trees of bandwidth a and in-trees of bandwidth r per link obey, for every set T with a rank,
x(outside T) <= a(into T) and x(outside T) <= r(out of T); every switch gets at least what it passes on of a, and
passes on at least what it gets of r; a + r <= b. Weights on these facts add up to a bound on the sum of all x.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

from chorale.synth.errors import CheckFailed
from chorale.synth.topology.topology import Topology


def check_pair_certificate(topology: Topology, certificate: Mapping[str, Any]) -> Fraction:
    """Return the claimed time per byte, which no pairs of trees beat, or raise CheckFailed. O(links * cuts), exact."""
    claimed, proved = _rational(certificate.get("time_per_byte")), proven_time(topology, certificate)
    if claimed > proved:
        raise _failure(f"{claimed} claimed, {proved} proved")
    return claimed


def proven_time(topology: Topology, certificate: Mapping[str, Any]) -> Fraction:
    """Return the time per byte that the weights of `certificate` prove; its own claim is not looked at."""
    if certificate.get("kind") != "tree-pairs":
        raise _failure(str(certificate.get("kind")))
    counted = [Fraction(0)] * topology.compute_count
    gather = _prices(topology, certificate, "gather", counted, outward=False)
    reduce = _prices(topology, certificate, "reduce", counted, outward=True)
    earned = Fraction(0)
    for place, link in enumerate(topology.links):
        earned += link.bandwidth * max(gather[place], reduce[place], Fraction(0))
    return min(counted) / earned if earned else earned


def _prices(
    topology: Topology, certificate: Mapping[str, Any], part: str, counted: list[Fraction], outward: bool
) -> list[Fraction]:
    """Return what the weights pay per link for out-trees or in-trees; add to `counted` what they ask of each root."""
    links = topology.links
    heads, tails = (links.src, links.dst) if outward else (links.dst, links.src)
    ends = list(zip(heads.tolist(), tails.tolist(), strict=True))
    index = {name: node for node, name in enumerate(topology.node_ids)}
    price = [Fraction(0)] * len(ends)
    for inside, weight in _cuts(certificate.get(f"{part}_cuts"), index, topology.compute_count):
        for rank in range(topology.compute_count):
            counted[rank] += weight if rank not in inside else 0
        for place, (head, tail) in enumerate(ends):
            if head in inside and tail not in inside:
                price[place] += weight
    worth = _switches(certificate.get(f"{part}_switches"), index, topology.compute_count)
    for place, (head, tail) in enumerate(ends):
        price[place] += worth.get(head, 0) - worth.get(tail, 0)
    return price


def _cuts(cuts: object, index: Mapping[str, int], ranks: int) -> Iterator[tuple[set[int], Fraction]]:
    if not isinstance(cuts, list):
        raise _failure("no cuts")
    for cut in cuts:
        names, weight = set(cut["nodes"]), _rational(cut["weight"])
        inside = {index[name] for name in names if name in index}
        if weight < 0 or len(inside) < len(names) or not any(node < ranks for node in inside):
            raise _failure(f"a cut of weight {weight} around {sorted(names)}")
        yield inside, weight


def _switches(worth: object, index: Mapping[str, int], ranks: int) -> dict[int, Fraction]:
    if not isinstance(worth, dict):
        raise _failure("no switches")
    found = {index.get(name, -1): _rational(value) for name, value in worth.items()}
    if any(node < ranks or value < 0 for node, value in found.items()):
        raise _failure("weights on what is no switch, or below 0")
    return found


def _rational(text: object) -> Fraction:
    try:
        return Fraction(str(text))
    except (ValueError, ZeroDivisionError):
        raise _failure(f"{text} for a number") from None


def _failure(found: str) -> CheckFailed:
    return CheckFailed("a bound must follow from its certificate", found, "compute it again")
