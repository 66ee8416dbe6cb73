"""Confirms predicted costs: scores candidates on the built topology, breaks ties, and verifies schedules.

Among candidates of equal cost, the one with the highest all-to-all rate is chosen if the rate is cheap to compute. A
search may also rank candidates by this rate, alone or together with the allreduce cost.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import groupby
from typing import Any, Literal

from chorale.synth.collective import ALLGATHER
from chorale.synth.errors import CheckFailed
from chorale.synth.executor.base import Executor, Progress
from chorale.synth.finder.bfb_score import ScoreCache, score_of_all_nodes
from chorale.synth.finder.candidate import TopologyCandidate, cost_of, promising
from chorale.synth.methods.alltoall.alltoall import alltoall_rate
from chorale.synth.methods.alltoall.rate import AllToAllRate
from chorale.synth.methods.bfb.bfb import MAX_EXPANDED_RANKS, symmetric_bfb
from chorale.synth.methods.catalog import synthesize
from chorale.synth.methods.expand.prediction import predict_allgather
from chorale.synth.topology.automorphism import automorphisms_are_transitive
from chorale.synth.topology.spec import parse_topology
from chorale.synth.verify.verify import verify


def with_known_costs(candidates: Sequence[TopologyCandidate], scores: ScoreCache) -> list[TopologyCandidate]:
    """Replace the candidates' predicted costs with their real costs if `scores` contains them.

    Only costs of BFB are predicted; costs of expanded stored schedules are already exact.
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
    """Return the specs of up to `count` candidates to score next: those with the lowest lower bounds on steps."""
    waiting = [candidate for candidate in promising(candidates) if not candidate.exact]
    waiting.sort(key=lambda candidate: (candidate.least_steps, cost_of(candidate), candidate.tie_break))
    return [candidate.spec for candidate in waiting[:count]]


def check_claims(groups: Sequence[tuple[TopologyCandidate, ...]], scores: ScoreCache, executor: Executor) -> None:
    """Check the costs that come from a theorem or from the database by scoring all BFB candidates in `groups`.

    Raises:
        CheckFailed: if a candidate's real cost differs from the claimed cost.
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
"""Largest number of nodes for which all-to-all rates are used to break ties; larger networks can take seconds."""
_CONTENDERS = 4


def break_ties(
    groups: Sequence[tuple[TopologyCandidate, ...]], executor: Executor, progress: Progress | None = None
) -> list[TopologyCandidate]:
    """Choose one candidate from each group of equal cost, by the highest all-to-all rate, then by `tie_break`.

    The certified lower bounds of the rates are compared. For large networks, only `tie_break` is used.
    """
    contenders = [group[:_CONTENDERS] if group[0].nodes <= MAX_RATED_NODES else group[:1] for group in groups]
    rates = rates_of([one.spec for group in contenders if len(group) > 1 for one in group], executor, progress)

    def order(candidate: TopologyCandidate) -> tuple[Fraction, tuple[int, int, str]]:
        return -rates[candidate.spec].lower if candidate.spec in rates else Fraction(0), candidate.tie_break

    return [min(group, key=order) for group in contenders]


Confirmation = Literal["schedule", "symmetric schedule", "prediction", "none"]
"""How a cost was confirmed.

schedule:           by a verified schedule with all ranks' rows
symmetric schedule: by a verified schedule with rank 0's rows and symmetries
prediction:         without a schedule, by code independent of the code that scored the candidate
none:               not confirmed
"""

MAX_WHOLE_RANKS = 1024
"""Up to this size, all ranks' rows are made even if rank 0's rows and symmetries would be enough."""


def confirm(candidate: TopologyCandidate, executor: Executor) -> Confirmation:
    """Confirm the candidate's cost and return how it was confirmed. Above `MAX_EXPANDED_RANKS`, no schedule is made.

    Raises:
        CheckFailed: if `synth METHOD SPEC` does not give a verified schedule of exactly this cost, or if a prediction
            differs from this cost.
    """
    topology = parse_topology(candidate.spec)
    ranks = topology.compute_count
    real: tuple[int, Fraction | None]
    how: Confirmation = "schedule"
    if ranks > MAX_WHOLE_RANKS and candidate.method == "bfb" and automorphisms_are_transitive(topology):
        how, cost = "symmetric schedule", verify(symmetric_bfb(topology, ALLGATHER, executor)).cost
        real = cost.steps, cost.bandwidth_factor
    elif ranks <= MAX_EXPANDED_RANKS:
        cost = synthesize(candidate.method, topology, ALLGATHER, None, executor).cost
        real = cost.steps, cost.bandwidth_factor
    elif candidate.method == "expand":
        prediction = predict_allgather(candidate.spec, executor)
        how, real = "prediction", (prediction.steps, prediction.bandwidth_factor)
    else:
        how, real = "prediction", score_of_all_nodes(topology)
    claimed = (candidate.nodes, candidate.degree, *cost_of(candidate))
    found = (ranks, topology.degree, *real)
    if claimed != found:
        rule = f"{candidate.method} on {candidate.spec} must have the nodes, degree, steps and factor that are claimed"
        value = f"{', '.join(map(str, found))} instead of {', '.join(map(str, claimed))}"
        raise CheckFailed(rule, value, "report this as a defect of the finder")
    return how


Goal = Literal["allreduce", "alltoall", "both"]

MAX_NODES_BY_RATE = 1024
"""Largest number of nodes for ranking by all-to-all rate; larger networks would take minutes each."""
_ROWS = 5


def rates_of(specs: Sequence[str], executor: Executor, progress: Progress | None) -> dict[str, AllToAllRate]:
    """Return certified bounds on the all-to-all rate of each topology in `specs`, one topology per task."""
    known = list(dict.fromkeys(specs))
    return dict(zip(known, executor.map(_alltoall_rate, known, None, progress), strict=True))


def _alltoall_rate(_shared: None, spec: str) -> AllToAllRate:
    return alltoall_rate(parse_topology(spec))


def rated_frontier(
    candidates: Sequence[TopologyCandidate], rates: Mapping[str, AllToAllRate], goal: Goal
) -> list[tuple[TopologyCandidate, ...]]:
    """Return the best candidates with exact costs, in groups of equal rate and cost, by decreasing achievable rate.

    For the goal `alltoall`, these are the few with the highest rates; for the goal `both`, those that are
    Pareto-optimal in rate, steps and bandwidth time.
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
