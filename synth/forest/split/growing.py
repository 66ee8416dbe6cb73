"""Arrays that grow while a kernel fills them."""

from __future__ import annotations

import numpy as np

from chorale.synth.compiled import inlined
from chorale.synth.flow.graph import Ranks


@inlined
def with_capacity(values: Ranks, used: int, more: int) -> Ranks:
    """Return `values`, or a copy of its first `used` entries in a larger array, with room for `more` behind them."""
    if used + more <= len(values):
        return values
    larger = np.empty(2 * (used + more), np.int32)
    larger[:used] = values[:used]
    return larger
