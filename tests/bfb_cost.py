"""The verified cost of the BFB allgather of a spec, for tests of what families promise."""

from fractions import Fraction

from chorale.synth.collective import ALLGATHER
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.methods.catalog import synthesize
from chorale.synth.topology.spec import parse_topology


def bfb_cost(spec: str) -> tuple[int, Fraction | None]:
    """Return (T_L in steps, T_B / (M/B)) of BFB on `spec`, from the verifier."""
    cost = synthesize("bfb", parse_topology(spec), ALLGATHER, None, SerialExecutor()).cost
    return cost.steps, cost.bandwidth_factor


def is_bandwidth_optimal(spec: str) -> bool:
    """Whether BFB on `spec` reaches (N - 1) / N, which no allgather can beat."""
    nodes = parse_topology(spec).compute_count
    return bfb_cost(spec)[1] == Fraction(nodes - 1, nodes)


def moore_steps(nodes: int, degree: int) -> int:
    """Return the fewest steps in which a node of a directed network of `degree` can be reached by all others."""
    steps, reached = 0, 1
    while reached < nodes:
        steps += 1
        reached += degree**steps
    return steps
