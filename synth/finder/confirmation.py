"""From predicted to confirmed costs: candidates are scored on the built topology, ties are broken, schedules verified.

Of candidates of equal cost the one of the higher all-to-all rate is taken, where that is cheap to compute; a search may
also rank by that rate, alone or beside the costs of an allreduce. The schedule
of the final candidates is made, verified, and compared with the claimed cost.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import groupby
from typing import Literal

from chorale.synth.collective import ALLGATHER
from chorale.synth.errors import CheckFailed, InvalidInput
from chorale.synth.executor.base import Executor, Progress
from chorale.synth.finder.bfb_score import ScoreCache, bfb_score
from chorale.synth.finder.candidate import TopologyCandidate, cost_of, promising
from chorale.synth.methods.alltoall.alltoall import alltoall_rate
from chorale.synth.methods.alltoall.rate import AllToAllRate
from chorale.synth.methods.bfb.bfb import MAX_EXPANDED_RANKS, symmetric_bfb
from chorale.synth.methods.catalog import synthesize
from chorale.synth.methods.expand.prediction import MAX_DEGREE, predict_allgather, predict_bfb_line
from chorale.synth.topology.automorphism import automorphisms_are_transitive
from chorale.synth.topology.grammar import FamilyCall, FunctionCall, parse_spec
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology
from chorale.synth.verify.verified import Cost
from chorale.synth.verify.verify import verify


def with_exact_costs(candidates: Sequence[TopologyCandidate], scores: ScoreCache) -> list[TopologyCandidate]:
    """Return the promising `candidates` with real costs, scoring here what `scores` does not know yet.

    A stored schedule, expanded, costs exactly what the rules say; all others are breadth-first broadcast.
    """
    return [candidate if candidate.exact else _real(candidate, scores) for candidate in promising(candidates)]


def with_known_costs(candidates: Sequence[TopologyCandidate], scores: ScoreCache) -> list[TopologyCandidate]:
    """Return `candidates`, with real costs where `scores` has them."""
    return [
        _real(candidate, scores) if not candidate.exact and scores.has(candidate.spec) else candidate
        for candidate in candidates
    ]


def most_promising(candidates: Sequence[TopologyCandidate], count: int) -> list[str]:
    """Return up to `count` specs whose scores are needed, those that may take the fewest steps first."""
    waiting = [candidate for candidate in promising(candidates) if not candidate.exact]
    waiting.sort(key=lambda candidate: (candidate.least_steps, cost_of(candidate), candidate.tie_break))
    return [candidate.spec for candidate in waiting[:count]]


def check_claims(groups: Sequence[tuple[TopologyCandidate, ...]], scores: ScoreCache, executor: Executor) -> None:
    """Score the frontier's costs that rest on a theorem or on the database, one topology per task, and compare.

    Raises CheckFailed if a real cost differs.
    """
    claimed = [candidate for group in groups for candidate in group if candidate.method == "bfb"]
    scores.compute([candidate.spec for candidate in claimed], executor)
    for candidate in claimed:
        score = scores.of(candidate.spec)
        if (score.steps, score.bandwidth_factor) != cost_of(candidate):
            value = f"{score.steps} steps and {score.bandwidth_factor}"
            rule = f"bfb on {candidate.spec} must take {candidate.steps} steps and {candidate.bandwidth_factor} M/B"
            raise CheckFailed(rule, value, "report this as a defect of the finder")


def _real(candidate: TopologyCandidate, scores: ScoreCache) -> TopologyCandidate:
    score = scores.of(candidate.spec)
    return replace(
        candidate,
        steps=score.steps,
        bandwidth_factor=score.bandwidth_factor,
        exact=True,
        least_steps=score.steps,
        least_factor=score.bandwidth_factor,
    )


MAX_RATED_NODES = 128
"""Rates of larger networks can take seconds each."""
_CONTENDERS = 4


def break_ties(
    groups: Sequence[tuple[TopologyCandidate, ...]], executor: Executor, progress: Progress | None = None
) -> list[TopologyCandidate]:
    """Return one candidate of each group of equals: by all-to-all rate where nodes are few, then by `tie_break`.

    The rate is the lower of its certified bounds: one that flows reach. One task per topology.
    """
    contenders = [group[:_CONTENDERS] if group[0].nodes <= MAX_RATED_NODES else group[:1] for group in groups]
    specs = list(dict.fromkeys(c.spec for group in contenders if len(group) > 1 for c in group))
    rates = dict(zip(specs, executor.map(_rate, specs, None, progress), strict=True))
    return [min(group, key=lambda c: (-rates.get(c.spec, Fraction(0)), c.tie_break)) for group in contenders]


def _rate(_shared: None, spec: str) -> Fraction:
    return alltoall_rate(parse_topology(spec)).lower


Confirmation = Literal["schedule", "symmetric schedule", "prediction", "none"]
"""schedule: made with the rows of all ranks and verified; symmetric schedule: with those of rank 0, and symmetries;
prediction: no schedule, but other code than scored it, on the network that was expanded or on the network itself built.
"""


@dataclass(frozen=True, slots=True)
class ScheduleLimits:
    """Up to how many ranks schedules are made whole even where rank 0 would do, and at all."""

    full: int = 1024
    expanded: int = MAX_EXPANDED_RANKS


def confirm(
    candidate: TopologyCandidate, executor: Executor, limits: ScheduleLimits = ScheduleLimits()
) -> Confirmation:
    """Return how the claimed cost was confirmed; "none" only above the ranks of `limits.expanded`.

    Raises CheckFailed if `synth METHOD SPEC` does not give a verified schedule of exactly that cost, or another
    prediction than claimed.
    """
    topology = parse_topology(candidate.spec)
    confirmation, real = _confirmed(candidate, topology, executor, limits)
    claimed = (candidate.nodes, candidate.degree, candidate.steps, candidate.bandwidth_factor)
    found = (topology.compute_count, topology.degree, *(real or claimed[2:]))
    if claimed != found:
        rule = f"{candidate.method} on {candidate.spec} must have the nodes, degree, steps and factor that are claimed"
        value = f"{', '.join(map(str, found))} instead of {', '.join(map(str, claimed))}"
        raise CheckFailed(rule, value, "report this as a defect of the finder")
    return confirmation


def _confirmed(
    candidate: TopologyCandidate, topology: Topology, executor: Executor, limits: ScheduleLimits
) -> tuple[Confirmation, tuple[int, Fraction | None] | None]:
    """Return how, and the real steps and factor."""
    ranks = topology.compute_count
    if ranks > limits.full and candidate.method == "bfb" and automorphisms_are_transitive(topology):
        return "symmetric schedule", _facts(verify(symmetric_bfb(topology, ALLGATHER, executor)).cost)
    if ranks <= limits.expanded:
        return "schedule", _facts(synthesize(candidate.method, topology, ALLGATHER, None, executor).cost)
    computed_again = _computed_again(candidate, topology, executor)
    return ("none", None) if computed_again is None else ("prediction", computed_again)


def _computed_again(
    candidate: TopologyCandidate, topology: Topology, executor: Executor
) -> tuple[int, Fraction] | None:
    """Return the exact cost by other code than scored the candidate, if there is any that does not take too long."""
    if candidate.method == "expand":
        prediction = predict_allgather(candidate.spec, executor)
        return prediction.steps, prediction.bandwidth_factor
    try:
        base = _line_base(candidate.spec)
        if base is not None and candidate.degree <= MAX_DEGREE:
            prediction = predict_bfb_line(parse_topology(base))
            return prediction.steps, prediction.bandwidth_factor
        if not candidate.spec.startswith("genkautz:"):
            return None
        score = bfb_score(topology)
    except InvalidInput:
        return None
    return score.steps, score.bandwidth_factor


def _line_base(spec: str) -> str | None:
    """Return a network whose line graph is `spec` up to names, if there is one that can be told from the spec.

    Generalized Kautz and de Bruijn graphs are line graphs of smaller ones of their kind: L(Pi(d, m)) = Pi(d, d m).
    """
    tree = parse_spec(spec)
    if isinstance(tree, FunctionCall) and tree.name == "line":
        base, *times = tree.arguments
        count = int(str(times[0])) if times else 1
        return f"line({base};{count - 1})" if count > 1 else str(base)
    if isinstance(tree, FamilyCall) and tree.name in ("genkautz", "debruijn"):
        degree, size = map(int, tree.text.split(","))
        if tree.name == "debruijn" and size > 1:
            return f"debruijn:{degree},{size - 1}"
        if tree.name == "genkautz" and size % degree == 0 and size > degree * degree:
            return f"genkautz:{degree},{size // degree}"
    return None


def _facts(cost: Cost) -> tuple[int, Fraction | None]:
    return cost.steps, cost.bandwidth_factor


Goal = Literal["allreduce", "alltoall", "both"]

MAX_NODES_BY_RATE = 1024
"""Up to so many nodes a goal may be the rate of an all-to-all: larger networks take minutes each."""
_ROWS = 5


def greatest_rate(nodes: int, degree: int, bidirectional: bool) -> Fraction:
    """Return what no network exceeds: a node must send over as many links as its distances add up to.

    Distances are at least those of the Moore bound; the unit is a link. nodes >= 2, degree >= 1.
    """
    left, ring, hops, distances = nodes - 1, degree, 1, 0
    while left > 0:
        distances += hops * min(ring, left)
        left, hops = left - ring, hops + 1
        ring *= max(degree - 1 if bidirectional else degree, 1)
    return Fraction(degree, distances)


def rates_of(specs: Sequence[str], executor: Executor, progress: Progress | None) -> dict[str, AllToAllRate]:
    """Return the certified bounds on the all-to-all rate of each of `specs`, one topology per task."""
    known = list(dict.fromkeys(specs))
    return dict(zip(known, executor.map(_alltoall_rate, known, None, progress), strict=True))


def _alltoall_rate(_shared: None, spec: str) -> AllToAllRate:
    return alltoall_rate(parse_topology(spec))


def rated_frontier(
    candidates: Sequence[TopologyCandidate], rates: Mapping[str, AllToAllRate], goal: Goal
) -> list[tuple[TopologyCandidate, ...]]:
    """Return the best candidates by falling rate that flows reach, equals together, the simplest first.

    alltoall: the few best; both: those that no other beats in rate, steps and bandwidth time at once. Costs are exact.
    """

    def order(candidate: TopologyCandidate) -> tuple[Fraction, int, Fraction]:
        return -rates[candidate.spec].lower, *cost_of(candidate)

    ordered = sorted(candidates, key=lambda one: (order(one), one.tie_break))
    groups = [tuple(group) for _, group in groupby(ordered, key=order)]
    if goal == "alltoall":
        return groups[:_ROWS]
    costs = [order(group[0]) for group in groups]
    return [
        group
        for group, cost in zip(groups, costs, strict=True)
        if not any(other != cost and all(other[i] <= cost[i] for i in range(len(cost))) for other in costs)
    ]
