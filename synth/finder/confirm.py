"""The last word on a candidate: its schedule is made, replayed chunk by chunk and compared with the claim."""

from __future__ import annotations

from fractions import Fraction
from typing import Literal

from chorale.synth.bfb.symmetric import MAX_EXPANDED_RANKS, symmetric_bfb
from chorale.synth.collective import ALLGATHER
from chorale.synth.errors import CheckFailed
from chorale.synth.executor.port import Executor
from chorale.synth.expand.bfb_line import MAX_DEGREE, predict_bfb_line
from chorale.synth.expand.prediction import Prediction, predict_allgather
from chorale.synth.finder.candidate import TopologyCandidate
from chorale.synth.methods import synthesize
from chorale.synth.topology.automorphism import automorphisms_are_transitive
from chorale.synth.topology.grammar import FamilyCall, FunctionCall, parse_spec
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology
from chorale.synth.verify.verified import Cost
from chorale.synth.verify.verify import verify

Confirmation = Literal["schedule", "symmetric schedule", "prediction", "none"]
"""schedule: made with the rows of all ranks and verified; symmetric schedule: with those of rank 0, and symmetries;
prediction: no schedule, but the cost follows from that of the network that was expanded, by other code than scored it.
"""

FULL_SCHEDULE_RANKS = 1024
"""Up to this number of ranks schedules are made whole even where rank 0 would do."""


def confirm(candidate: TopologyCandidate, executor: Executor) -> Confirmation:
    """Return how the claimed cost was confirmed; "none" only above 4096 ranks.

    Raises CheckFailed if `synth METHOD SPEC` does not give a verified schedule of exactly that cost, or another
    prediction than claimed.
    """
    topology = parse_topology(candidate.spec)
    confirmation, real = _confirmed(candidate, topology, executor)
    claimed = (candidate.nodes, candidate.degree, candidate.steps, candidate.bandwidth_factor)
    found = (topology.compute_count, topology.degree, *(real or claimed[2:]))
    if claimed != found:
        rule = f"{candidate.method} on {candidate.spec} must have the nodes, degree, steps and factor that are claimed"
        value = f"{', '.join(map(str, found))} instead of {', '.join(map(str, claimed))}"
        raise CheckFailed(rule, value, "report this as a defect of the finder")
    return confirmation


def _confirmed(
    candidate: TopologyCandidate, topology: Topology, executor: Executor
) -> tuple[Confirmation, tuple[int, Fraction | None] | None]:
    """Return how, and the real steps and factor."""
    ranks = topology.compute_count
    if ranks > FULL_SCHEDULE_RANKS and candidate.method == "bfb" and automorphisms_are_transitive(topology):
        return "symmetric schedule", _facts(verify(symmetric_bfb(topology, ALLGATHER, executor)).cost)
    if ranks <= MAX_EXPANDED_RANKS:
        return "schedule", _facts(synthesize(candidate.method, topology, ALLGATHER, None, executor).cost)
    prediction = _prediction(candidate, executor)
    if prediction is None:
        return "none", None
    return "prediction", (prediction.steps, prediction.bandwidth_factor)


def _prediction(candidate: TopologyCandidate, executor: Executor) -> Prediction | None:
    """Return the exact cost from that of a smaller network, if the candidate is an expansion of one."""
    if candidate.method == "expand":
        return predict_allgather(candidate.spec, executor)
    base = _line_base(candidate.spec)
    if base is None or candidate.degree > MAX_DEGREE:
        return None
    return predict_bfb_line(parse_topology(base))


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
