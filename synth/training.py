"""The time of one iteration of data-parallel training, with or without experts: computation and communication overlap.

Sources: Li et al., "PyTorch Distributed: experiences on accelerating data parallel training", 2020 (buckets, wait-free
back-propagation); Zhao et al., "Efficient Direct-Connect Topologies for Collective Communications", appendix A.4.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from chorale.synth.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Layer:
    """Work of a rank for one layer in an iteration, on its part of the batch.

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


CollectiveTime: TypeAlias = Callable[[int], float]
"""From bytes to seconds. Allreduce: of the vector; all-to-all: of what a rank sends to all others together."""

BUCKETS_BYTES = (10**6, 10**7, 10**8, 10**9)
"""Bucket sizes of which appendix A.4 takes the best."""


@dataclass(frozen=True, slots=True)
class Iteration:
    """The seconds of an iteration by purpose: computation, all-to-all and exposed allreduce add up to the whole.

    exposed_allreduce_s: seconds in which ranks neither compute nor exchange tokens because gradients are under way
    allreduce_s:         seconds of all allreduces, hidden behind computation or not
    """

    bucket_bytes: int
    compute_s: float
    alltoall_s: float
    exposed_allreduce_s: float
    allreduce_s: float
    allreduces: int

    @property
    def total_s(self) -> float:
        return self.compute_s + self.alltoall_s + self.exposed_allreduce_s


def train_iteration(
    layers: Sequence[Layer], bucket_bytes: int, allreduce: CollectiveTime, alltoall: CollectiveTime
) -> Iteration:
    """Return the iteration of a model with `layers` in forward order, alike on all ranks.

    Computation and communication are two streams; the second does one collective at a time, in order. Gradients
    gather in a bucket during the backward pass; when it holds `bucket_bytes` or more (a layer is never split) it
    is summed by an allreduce beside what is computed next; what is left goes at the end. Layers with experts do an
    all-to-all before and one after their computation, in both passes; these wait for allreduces that were begun,
    and computation waits for them. O(layers).
    """
    if bucket_bytes < 1:
        raise InvalidInput("a bucket must hold at least 1 byte", bucket_bytes, "choose a larger bucket, such as 25M")
    now_s = free_s = 0.0  # of computation; when the network has done all it was given
    compute_s = alltoall_s = exposed_s = allreduce_s = 0.0
    allreduces = waiting_bytes = 0
    passes = [(layer, layer.forward_s, 0) for layer in layers]
    passes += [(layer, layer.backward_s, layer.gradient_bytes) for layer in reversed(layers)]
    for number, (layer, seconds, gradient_bytes) in enumerate(passes, start=1):
        for computed_s in (seconds, 0.0):  # tokens are exchanged before and after the computation
            if layer.alltoall_bytes:
                exposed_s += max(0.0, free_s - now_s)
                exchanged_s = alltoall(layer.alltoall_bytes)
                now_s = max(now_s, free_s) + exchanged_s
                alltoall_s += exchanged_s
            now_s += computed_s
            compute_s += computed_s
        waiting_bytes += gradient_bytes
        if waiting_bytes >= bucket_bytes or (waiting_bytes and number == len(passes)):
            summed_s = allreduce(waiting_bytes)
            free_s = max(free_s, now_s) + summed_s
            allreduce_s += summed_s
            allreduces, waiting_bytes = allreduces + 1, 0
    exposed_s += max(0.0, free_s - now_s)
    return Iteration(bucket_bytes, compute_s, alltoall_s, exposed_s, allreduce_s, allreduces)


def best_iteration(
    layers: Sequence[Layer], buckets_bytes: Sequence[int], allreduce: CollectiveTime, alltoall: CollectiveTime
) -> Iteration:
    """Return the shortest of the iterations with these capacities of a bucket (at least one); the first if equal."""
    iterations = [train_iteration(layers, bucket_bytes, allreduce, alltoall) for bucket_bytes in buckets_bytes]
    return min(iterations, key=lambda iteration: iteration.total_s)
