"""Outliers: named, never dropped.

Every repetition counts. Medians and the intervals between order statistics bear a few wild ones, so there is nothing
to win by removing any, and a run that needs removals to look good should be seen to.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

FENCE = 3.0
"""Times beyond this many interquartile ranges outside the quartiles are outliers (Tukey, Exploratory Data Analysis,
1977, section 2D: `far out` values)."""


def find_outliers(times_s: Sequence[float]) -> tuple[int, ...]:
    """Return the repetitions, counted from 0, whose times are far out of line with the others."""
    first, third = np.percentile(times_s, [25, 75])
    reach = FENCE * (third - first)
    return tuple(n for n, time in enumerate(times_s) if not first - reach <= time <= third + reach)
