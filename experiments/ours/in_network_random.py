"""Allreduce on a thousand random networks whose switches add and multicast: gaps, and why they are there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from fractions import Fraction

from chorale.experiments.framework.experiment import Column, Experiment, Row
from chorale.experiments.ours.in_network import both_bounds, in_network_allreduce
from chorale.experiments.ours.random_fabrics import random_able_fabric, random_mixed_fabric
from chorale.synth.bounds.price_certificate import KIND, check_price_certificate
from chorale.synth.identity import rational_text
from chorale.synth.topology.topology import Topology
from chorale.synth.verify.verified import VerifiedSchedule

BATCH = 100
BATCHES = 10
BEST_PAIRS = "no pairs of trees are better, by a checked certificate; other schedules are open"
ROUNDED = "within 0.01 % of the bound or of the best pairs of trees: shares are rounded to whole units"
UNEXPLAINED = "more than 0.01 % above what is proved of pairs of trees"
_UNITS = Fraction(1, 10_000)


def reason_of(verified: VerifiedSchedule, bound: Fraction) -> str:
    """Return why a schedule misses `bound`: what the certificate about pairs of trees says of its rate."""
    certificate, least = verified.schedule.certificate, bound
    if certificate.get("kind") == KIND:
        least = max(least, check_price_certificate(verified.schedule.topology, certificate))
    above = verified.cost.time_per_byte / least - 1
    return BEST_PAIRS if above == 0 else ROUNDED if above <= _UNITS else UNEXPLAINED


def _row(batch: int, fabric: Callable[[int], Topology]) -> Row:
    """Return the row of one hundred networks; each gap is named with its seed and why it is there."""
    gaps: dict[int, Fraction] = {}
    ways: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    wins = 0
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        topology = fabric(seed)
        alone, bound = both_bounds(topology)
        verified = in_network_allreduce(topology)
        ways[str(verified.schedule.parameters.get("construction") or "ranks alone")] += 1
        wins += verified.cost.time_per_byte < alone
        gap = verified.cost.time_per_byte / bound - 1
        if gap:
            gaps[seed] = gap
            reasons[reason_of(verified, bound)] += 1
    return {
        "batch": batch,
        "networks": BATCH,
        "at_gap_0": BATCH - len(gaps),
        "switches_win": wins,
        "constructions": dict(ways),
        "worst_gap": rational_text(max(gaps.values(), default=Fraction(0))),
        "gaps": {str(seed): rational_text(gap) for seed, gap in gaps.items()},
        "reasons": dict(reasons),
        "reason": "; ".join(f"{count}: {reason}" for reason, count in reasons.items()) or None,
        "holds": all(gap > 0 for gap in gaps.values()) and not reasons[UNEXPLAINED],
    }


def _rows_of_able(batch: int) -> list[Row]:
    return [_row(batch, random_able_fabric)]


def _rows_of_mixed(batch: int) -> list[Row]:
    return [_row(batch, random_mixed_fabric)]


_COLUMNS = (
    Column("seeds", lambda row: f"{row['batch'] * BATCH} to {(row['batch'] + 1) * BATCH - 1}"),
    Column("at gap 0", lambda row: f"{row['at_gap_0']} of {row['networks']}"),
    Column("switches win", lambda row: str(row["switches_win"])),
    Column("worst gap", lambda row: f"{float(Fraction(row['worst_gap'])):.4%}" if row["gaps"] else "0"),
    Column("gaps by seed", lambda row: ", ".join(f"{seed}: {gap}" for seed, gap in row["gaps"].items())),
)

RANDOM = Experiment(
    name="in-network-random",
    question="Do schedules meet the bounds on random networks of up to 7 ranks and 4 switches, 1,000 in all?",
    source="ours; `random_able_fabric` of `experiments/ours/random_fabrics.py`, seeds 0 to 999",
    columns=_COLUMNS,
    cases=lambda quick: range(1 if quick else BATCHES),
    evaluate=_rows_of_able,
)

MIXED = Experiment(
    name="in-network-random-mixed",
    question="And where links differ by direction, and switches only add, only multicast, or add little?",
    source="ours; `random_mixed_fabric` of `experiments/ours/random_fabrics.py`, seeds 0 to 999",
    columns=_COLUMNS,
    cases=lambda quick: range(1 if quick else BATCHES),
    evaluate=_rows_of_mixed,
)
