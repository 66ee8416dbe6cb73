"""Confirms predicted costs: scores candidates on the built topology, breaks ties, and verifies schedules.

Among candidates of equal cost, the one with the highest all-to-all rate is chosen if the rate is cheap to compute. A
search may also rank by this rate, alone or together with the cost of an allreduce.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import groupby
from typing import Any, Literal

from chorale.synth.collective import ALLGATHER
from chorale.synth.errors import CheckFailed, InvalidInput
from chorale.synth.executor.base import Executor, Progress
from chorale.synth.finder.bfb_score import ScoreCache, bfb_score
from chorale.synth.finder.candidate import Cost, TopologyCandidate, cost_of, promising
from chorale.synth.methods.alltoall.alltoall import alltoall_rate
from chorale.synth.methods.alltoall.rate import AllToAllRate
from chorale.synth.methods.bfb.bfb import MAX_EXPANDED_RANKS, symmetric_bfb
from chorale.synth.methods.catalog import synthesize
from chorale.synth.methods.expand.prediction import MAX_DEGREE, predict_allgather, predict_bfb_line
from chorale.synth.topology.automorphism import automorphisms_are_transitive
from chorale.synth.topology.grammar import FamilyCall, FunctionCall, parse_spec
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology
from chorale.synth.verify.verify import verify


def with_known_costs(candidates: Sequence[TopologyCandidate], scores: ScoreCache) -> list[TopologyCandidate]:
    """Replace predicted costs of `candidates` by the real costs in `scores`.

    Only predictions for BFB change. The cost of an expanded stored schedule is already exact.
    """
    known = []
    for candidate in candidates:
        if not candidate.exact and candidate.spec in scores:
            steps, factor = scores[candidate.spec]
            real: Any = {"steps": steps, "bandwidth_factor": factor, "least_steps": steps, "least_factor": factor}
            known.append(replace(candidate, exact=True, **real))
        else:
            known.append(candidate)
    return known


def most_promising(candidates: Sequence[TopologyCandidate], count: int) -> list[str]:
    """Return up to `count` specs to score next, sorted by the lower bound on their steps."""
    waiting = [candidate for candidate in promising(candidates) if not candidate.exact]
    waiting.sort(key=lambda candidate: (candidate.least_steps, cost_of(candidate), candidate.tie_break))
    return [candidate.spec for candidate in waiting[:count]]


def check_claims(groups: Sequence[tuple[TopologyCandidate, ...]], scores: ScoreCache, executor: Executor) -> None:
    """Check costs that come from a theorem or from the database by scoring these candidates, one topology per task.

    Raises:
        CheckFailed: if the real cost of a candidate differs from the claimed cost.
    """
    claimed = [candidate for group in groups for candidate in group if candidate.method == "bfb"]
    scores.compute([candidate.spec for candidate in claimed], executor)
    for candidate in claimed:
        score = scores[candidate.spec]
        if score != cost_of(candidate):
            value = f"{score.steps} steps and {score.bandwidth_factor}"
            rule = f"bfb on {candidate.spec} must take {candidate.steps} steps and {candidate.bandwidth_factor} M/B"
            raise CheckFailed(rule, value, "report this as a defect of the finder")


MAX_RATED_NODES = 128
"""Largest network for which the all-to-all rate is used to break ties; for larger ones it can take seconds."""
_CONTENDERS = 4


def break_ties(
    groups: Sequence[tuple[TopologyCandidate, ...]], executor: Executor, progress: Progress | None = None
) -> list[TopologyCandidate]:
    """Choose one candidate from each group of equal cost: highest all-to-all rate first, then by `tie_break`.

    The rate that counts is the certified lower bound, which is achievable. For large networks only `tie_break` counts.
    """
    contenders = [group[:_CONTENDERS] if group[0].nodes <= MAX_RATED_NODES else group[:1] for group in groups]
    rates = rates_of([one.spec for group in contenders if len(group) > 1 for one in group], executor, progress)

    def order(candidate: TopologyCandidate) -> tuple[Fraction, tuple[int, int, str]]:
        return -rates[candidate.spec].lower if candidate.spec in rates else Fraction(0), candidate.tie_break

    return [min(group, key=order) for group in contenders]


Confirmation = Literal["schedule", "symmetric schedule", "prediction", "none"]
"""How a cost was confirmed.

schedule:           by a verified schedule with the rows of all ranks
symmetric schedule: by a verified schedule with the rows of rank 0 and symmetries
prediction:         without a schedule, by separate code that did not score the candidate
none:               not confirmed
"""

MAX_WHOLE_RANKS = 1024
"""Up to this size, the rows of all ranks are made even if those of rank 0 and symmetries would be enough."""


def confirm(candidate: TopologyCandidate, executor: Executor) -> Confirmation:
    """Confirm the claimed cost of `candidate`; return how. "none" is only possible above `MAX_EXPANDED_RANKS` ranks.

    Raises:
        CheckFailed: if `synth METHOD SPEC` does not give a verified schedule of exactly that cost, or if a prediction
            differs from it.
    """
    topology = parse_topology(candidate.spec)
    ranks = topology.compute_count
    real: tuple[int, Fraction | None] | None
    how: Confirmation = "schedule"
    if ranks > MAX_WHOLE_RANKS and candidate.method == "bfb" and automorphisms_are_transitive(topology):
        how, cost = "symmetric schedule", verify(symmetric_bfb(topology, ALLGATHER, executor)).cost
        real = cost.steps, cost.bandwidth_factor
    elif ranks <= MAX_EXPANDED_RANKS:
        cost = synthesize(candidate.method, topology, ALLGATHER, None, executor).cost
        real = cost.steps, cost.bandwidth_factor
    else:
        real = _predicted(candidate, topology, executor)
        how = "none" if real is None else "prediction"
    claimed = (candidate.nodes, candidate.degree, *cost_of(candidate))
    found = (ranks, topology.degree, *(real or cost_of(candidate)))
    if claimed != found:
        rule = f"{candidate.method} on {candidate.spec} must have the nodes, degree, steps and factor that are claimed"
        value = f"{', '.join(map(str, found))} instead of {', '.join(map(str, claimed))}"
        raise CheckFailed(rule, value, "report this as a defect of the finder")
    return how


def _predicted(candidate: TopologyCandidate, topology: Topology, executor: Executor) -> Cost | None:
    """Compute the exact cost with code that did not score the candidate; None if this would take too long."""
    if candidate.method == "expand":
        prediction = predict_allgather(candidate.spec, executor)
        return prediction.steps, prediction.bandwidth_factor
    base = _line_base(candidate.spec) if candidate.degree <= MAX_DEGREE else None
    try:
        if base is not None:
            prediction = predict_bfb_line(parse_topology(base))
            return prediction.steps, prediction.bandwidth_factor
        return bfb_score(topology) if candidate.spec.startswith("genkautz:") else None
    except InvalidInput:
        return None


def _line_base(spec: str) -> str | None:
    """Return a network with a line graph isomorphic to `spec`; None if none can be derived from the spec.

    Many generalized Kautz and de Bruijn graphs are line graphs in the same family: L(Pi(d, m)) = Pi(d, d m).
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


Goal = Literal["allreduce", "alltoall", "both"]

MAX_NODES_BY_RATE = 1024
"""Largest network that can be ranked by all-to-all rate; each larger one would take minutes."""
_ROWS = 5


def rates_of(specs: Sequence[str], executor: Executor, progress: Progress | None) -> dict[str, AllToAllRate]:
    """Return certified bounds on the all-to-all rate of each of `specs`, one topology per task."""
    known = list(dict.fromkeys(specs))
    return dict(zip(known, executor.map(_alltoall_rate, known, None, progress), strict=True))


def _alltoall_rate(_shared: None, spec: str) -> AllToAllRate:
    return alltoall_rate(parse_topology(spec))


def rated_frontier(
    candidates: Sequence[TopologyCandidate], rates: Mapping[str, AllToAllRate], goal: Goal
) -> list[tuple[TopologyCandidate, ...]]:
    """Return the best candidates with exact costs, in groups of equals, sorted by decreasing achievable rate.

    For the goal `alltoall` these are the few with the highest rates; for the goal `both`, the Pareto-efficient ones in
    rate, steps and bandwidth time.
    """

    def order(candidate: TopologyCandidate) -> tuple[Fraction, int, Fraction]:
        return -rates[candidate.spec].lower, *cost_of(candidate)

    ordered = sorted(candidates, key=lambda one: (order(one), one.tie_break))
    groups = {cost: tuple(group) for cost, group in groupby(ordered, key=order)}
    if goal == "alltoall":
        return list(groups.values())[:_ROWS]
    return [
        group
        for cost, group in groups.items()
        if not any(other != cost and all(other[i] <= cost[i] for i in range(3)) for other in groups)
    ]
