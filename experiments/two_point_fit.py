"""A network model from two known bandwidths of one schedule: what the fit says of others shows what it is worth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

from chorale.synth.simulation.congestion import Congestion
from chorale.synth.simulation.network_model import NetworkModel

_ROUNDS = 4
_MOST_ALPHA_S = Fraction(1, 1000)
_HALVINGS = 30


def fit_two_points(cost: Congestion, known_gbps: Mapping[int, float]) -> NetworkModel:
    """Return the model whose alpha gives the smallest of the known sizes its time, and whose efficiency the largest.

    known_gbps: algorithmic bandwidths in GB/s by bytes of the vector
    """
    small, large = min(known_gbps), max(known_gbps)
    model = NetworkModel()
    for _ in range(_ROUNDS):
        excess = float(cost.seconds(model, large)) / _seconds(known_gbps, large)
        model = replace(model, efficiency=model.efficiency * Fraction(excess).limit_denominator(10**6))
        low, high = Fraction(0), _MOST_ALPHA_S
        for _ in range(_HALVINGS):
            alpha = (low + high) / 2
            slow = cost.seconds(replace(model, alpha_s=alpha), small) > _seconds(known_gbps, small)
            low, high = (low, alpha) if slow else (alpha, high)
        model = replace(model, alpha_s=low)
    return model


def predicted_gbps(cost: Congestion, model: NetworkModel, size_bytes: int) -> float:
    """Return the algorithmic bandwidth of a vector of `size_bytes`."""
    return size_bytes / float(cost.seconds(model, size_bytes)) / 1e9


def _seconds(known_gbps: Mapping[int, float], size_bytes: int) -> float:
    return size_bytes / known_gbps[size_bytes] / 1e9
