"""A layer of a neural network, as far as the time of training depends on it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Layer:
    """What a rank does for one layer in an iteration, with its own part of the batch.

    forward_s, backward_s: seconds of computation
    gradient_bytes: of the parameters that every rank holds; summed over all ranks once the backward pass is through
    alltoall_bytes: what a rank sends to all ranks together when tokens are routed to experts, and again when they
                    come back, in either pass; 0 for layers without experts
    """

    name: str
    forward_s: float
    backward_s: float
    gradient_bytes: int
    alltoall_bytes: int = 0
