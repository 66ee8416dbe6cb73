"""The traffic of a symmetric schedule: what rank 0 receives over each in-link, on all images of that link."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from synth.schedule.routes import Routes
from synth.schedule.symmetric import SymmetricGather, SymmetricSchedule
from synth.schedule.traffic import Traffic, TrafficStep, merged_step
from synth.topology.transpose import transpose_with_links


def symmetric_traffic(schedule: SymmetricSchedule) -> Traffic:
    """Return the traffic of `schedule` without writing out its transfers. O(steps * links)."""
    links = schedule.topology.links
    steps: list[TrafficStep] = []
    if schedule.scatter is not None:
        scale = schedule.chunks_per_shard // schedule.scatter.chunks_per_shard
        _, original_link = transpose_with_links(schedule.topology)
        backwards = reversed(list(_link_amounts(schedule.scatter)))
        steps += [merged_step(original_link[link], amount * scale) for link, amount in backwards]
    if schedule.gather is not None:
        scale = schedule.chunks_per_shard // schedule.gather.chunks_per_shard
        steps += [merged_step(link, amount * scale) for link, amount in _link_amounts(schedule.gather)]
    denominator = schedule.chunks_per_shard * schedule.topology.compute_count
    routes = Routes.direct(len(links))
    return Traffic(schedule.topology, schedule.collective, schedule.kind, tuple(steps), denominator, routes)


def _link_amounts(part: SymmetricGather) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yield for each step the links that carry anything, and how many chunks each carries."""
    base_link = part.base_links()
    for load in part.loads():
        of_link = load[base_link]
        used = np.flatnonzero(of_link)
        yield used, of_link[used]
