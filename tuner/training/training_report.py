"""Training a model on several networks: the iterations side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chorale.synth.training import Iteration, best_iteration
from chorale.tuner.training.training_costs import TrainingCosts
from chorale.tuner.training.training_profile import TrainingProfile


def training_row(profile: TrainingProfile, buckets_bytes: Sequence[int], costs: TrainingCosts) -> dict[str, Any]:
    """Return the best iteration of `profile` on one network, by bucket sizes, as a report has it."""
    layers = profile.layers()
    iteration = best_iteration(layers, buckets_bytes, costs.allreduce_s, costs.alltoall_s)
    rate = costs.alltoall_rate
    return {
        "spec": costs.topology.spec,
        "nodes": costs.topology.compute_count,
        "method": costs.method,
        **iteration_seconds(iteration),
        "alltoall_rate": None if rate is None else float(rate),
    }


def iteration_seconds(iteration: Iteration) -> dict[str, Any]:
    """Return what an iteration takes and on what it is spent, as a report has it."""
    return {
        "iteration_s": iteration.total_s,
        "compute_s": iteration.compute_s,
        "alltoall_s": iteration.alltoall_s,
        "exposed_allreduce_s": iteration.exposed_allreduce_s,
        "allreduce_s": iteration.allreduce_s,
        "allreduces": iteration.allreduces,
        "bucket_bytes": iteration.bucket_bytes,
    }
