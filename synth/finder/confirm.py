"""The last word on a candidate: its schedule is made, replayed chunk by chunk and compared with the claim."""

from __future__ import annotations

from synth.collective import ALLGATHER
from synth.errors import CheckFailed
from synth.executor.port import Executor
from synth.finder.candidate import Candidate
from synth.methods import synthesize
from synth.topology.spec import parse_topology


def confirm(candidate: Candidate, executor: Executor) -> None:
    """Raise CheckFailed unless `synth METHOD SPEC` gives a verified schedule of exactly the claimed cost."""
    topology = parse_topology(candidate.spec)
    verified = synthesize(candidate.method, topology, ALLGATHER, None, executor)
    claimed = (candidate.nodes, candidate.degree, candidate.steps, candidate.bandwidth_factor)
    real = (topology.compute_count, topology.degree, verified.schedule.steps, verified.cost.bandwidth_factor)
    if claimed != real:
        rule = f"{candidate.method} on {candidate.spec} must have the nodes, degree, steps and factor that are claimed"
        value = f"{', '.join(map(str, real))} instead of {', '.join(map(str, claimed))}"
        raise CheckFailed(rule, value, "report this as a defect of the finder")
