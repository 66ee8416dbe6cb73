"""Iterations of training on several networks: allreduce by simulated traffic, all-to-all by its certified rate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from chorale.synth.methods.alltoall.alltoall import alltoall_rate
from chorale.synth.methods.catalog import METHODS
from chorale.synth.simulation.congestion import Congestion, congestion_of
from chorale.synth.simulation.network_model import NetworkModel
from chorale.synth.topology.topology import Topology
from chorale.synth.training import Iteration, best_iteration
from chorale.tuner.costs.pricing import Pricing, traffic_of_method
from chorale.tuner.costs.training_profile import TrainingProfile

DEFAULT_METHOD = "bfb"
_GAP = Fraction(1, 100)


@dataclass(frozen=True, slots=True, eq=False)
class TrainingCosts:
    """Seconds of collectives on one network.

    unmodelled_s:  overhead of every allreduce beside the network model, from a calibration; else 0
    alltoall_rate: at which every rank sends to every other, over the bandwidth of a link; None without all-to-all
    """

    topology: Topology
    method: str
    congestion: Congestion
    model: NetworkModel
    unmodelled_s: float
    alltoall_rate: Fraction | None

    def allreduce_s(self, size_bytes: int) -> float:
        """Return the seconds of an allreduce of a vector of `size_bytes` by the congestion model."""
        return self.unmodelled_s + float(self.congestion.seconds(self.model, size_bytes))

    def alltoall_s(self, size_bytes: int) -> float:
        """Return the seconds in which every rank sends `size_bytes`, an equal part to each rank, itself included.

        By bandwidth alone, over optimal routes (full paper on direct-connect topologies, appendices A.4 and A.5).
        """
        if self.alltoall_rate is None:
            raise ValueError("these costs were made without an all-to-all rate")
        pair_bytes = Fraction(size_bytes, self.topology.compute_count)
        return float(pair_bytes / (self.alltoall_rate * self.model.unit_bytes_per_s(self.topology)))


def split_network(text: str) -> tuple[str, str]:
    """Return (method, spec) of `METHOD@SPEC`; of a spec alone, bfb is the method."""
    method, separator, spec = text.partition("@")
    return (method, spec) if separator and method in METHODS else (DEFAULT_METHOD, text)


def training_costs(method: str, spec: str, pricing: Pricing, with_alltoall: bool) -> TrainingCosts:
    """Return the costs of `method`'s allreduce on `spec`, and of all-to-all within one percent of the best rate."""
    traffic = traffic_of_method(method, spec, "allreduce", pricing, None).traffic
    topology = traffic.topology
    rate = alltoall_rate(topology, _GAP).lower if with_alltoall else None
    return TrainingCosts(
        topology, method, congestion_of(traffic), pricing.network(topology), pricing.unmodelled_flows_s(traffic), rate
    )


def training_row(profile: TrainingProfile, buckets_bytes: Sequence[int], costs: TrainingCosts) -> dict[str, Any]:
    """Return the row of a report: the fastest iteration of `profile` on one network, over the bucket sizes."""
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
    """Return the seconds of an iteration and of its parts, by their keys in reports."""
    return {
        "iteration_s": iteration.total_s,
        "compute_s": iteration.compute_s,
        "alltoall_s": iteration.alltoall_s,
        "exposed_allreduce_s": iteration.exposed_allreduce_s,
        "allreduce_s": iteration.allreduce_s,
        "allreduces": iteration.allreduces,
        "bucket_bytes": iteration.bucket_bytes,
    }
