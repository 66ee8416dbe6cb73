"""What flows of an all-to-all must do, for several tests."""

import numpy as np

from chorale.synth.methods.alltoall.linear_program import Commodities
from chorale.synth.methods.alltoall.price_descent import Floats


def assert_all_arrives(problem: Commodities, by_source: Floats) -> None:
    """Assert that the flows of each source, float64[K, links], take to every node what it needs, and no more."""
    for source, flow in zip(problem.sources, by_source, strict=True):
        arrived = np.bincount(problem.dst, weights=flow, minlength=problem.node_count)
        left = np.bincount(problem.src, weights=flow, minlength=problem.node_count)
        needed = problem.demand[0].astype(float)
        needed[source] -= needed.sum()
        assert np.allclose(arrived - left, needed)
