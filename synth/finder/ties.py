"""Choosing among candidates of equal cost: the higher all-to-all rate wins, where it is cheap to know."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from chorale.synth.alltoall.alltoall import alltoall_rate
from chorale.synth.executor.port import Executor, Progress
from chorale.synth.finder.candidate import TopologyCandidate
from chorale.synth.topology.spec import parse_topology

MAX_RATED_NODES = 128
"""Rates of larger networks can take seconds each."""
_CONTENDERS = 4


def break_ties(
    groups: Sequence[tuple[TopologyCandidate, ...]], executor: Executor, progress: Progress | None = None
) -> list[TopologyCandidate]:
    """Return one candidate of each group of equals, in order of taste, with few nodes by all-to-all rate first.

    The rate is the lower of its certified bounds: one that flows reach. One task per topology.
    """
    contenders = [group[:_CONTENDERS] if group[0].nodes <= MAX_RATED_NODES else group[:1] for group in groups]
    specs = list(dict.fromkeys(c.spec for group in contenders if len(group) > 1 for c in group))
    rates = dict(zip(specs, executor.map(_rate, specs, None, progress), strict=True))
    return [min(group, key=lambda c: (-rates.get(c.spec, Fraction(0)), c.tie_break)) for group in contenders]


def _rate(_shared: None, spec: str) -> Fraction:
    return alltoall_rate(parse_topology(spec)).lower
