"""The only file that calls the linear-program solver: HiGHS, in floats whose results callers must check."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from chorale.synth.errors import Unavailable
from chorale.synth.lazy_modules import optimize

Floats = NDArray[np.float64]


def minimum(objective: Floats, matrix: Any, bound: Floats, way_out: str) -> tuple[Floats, Floats]:
    """Return the x >= 0 with matrix @ x <= bound that minimises objective @ x, and the marginals of the rows.

    matrix: sparse, float64[rows, columns]. Interior point, then a vertex. Both results are right up to the solver's
    tolerances; x may be a little below 0. Raises Unavailable, with `way_out`, where the solver finds no optimum.
    """
    result = optimize.linprog(objective, A_ub=matrix, b_ub=bound, bounds=(0, None), method="highs-ipm")
    if result.x is None or result.ineqlin is None:
        raise Unavailable("the linear-program solver must find an optimum", result.message, way_out)
    return np.asarray(result.x), np.asarray(result.ineqlin.marginals)
