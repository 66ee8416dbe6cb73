"""What a recorded task says about another: as a registry would have it from an earlier campaign."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from chorale.tuner.replay.tasks import GridTask
from chorale.tuner.search.prior import Prior, nearest_sizes


def prior_from(tasks: Sequence[GridTask], target: GridTask) -> Prior | None:
    """Return what `tasks`, without `target` itself, say about the points of `target`; None if that is nothing.

    The same points of the same collective count, at the nearest size; several tasks by their mean.
    """
    others = [task for task in tasks if task.name != target.name and task.collective == target.collective]
    gains: dict[object, list[np.ndarray]] = {}
    for task in others:
        nearest = nearest_sizes(task.sizes_bytes, target.sizes_bytes)
        for candidate, times in zip(task.candidates, task.times_s, strict=True):
            gains.setdefault(candidate, []).append(np.log(task.library_s / times)[nearest])
    known = {one: np.mean(gains[one], axis=0) for one in target.candidates if one in gains}
    return Prior(known) if known else None
