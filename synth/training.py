"""Models the time of one iteration of data-parallel training, in which communication overlaps with computation.

Sources: Li et al., "PyTorch Distributed: experiences on accelerating data parallel training", 2020 (buckets, wait-free
back-propagation); Zhao et al., "Efficient Direct-Connect Topologies for Collective Communications", appendix A.4.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from chorale.synth.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Layer:
    """The work of one rank for one layer in a training iteration. Each rank processes its own part of the batch.

    forward_s, backward_s: computation time in seconds
    gradient_bytes: bytes of gradients for the parameters that every rank holds; gradients are summed over all ranks
                    after the layer's backward pass
    alltoall_bytes: total bytes that a rank sends when tokens are routed to experts. The rank sends the same amount
                    when tokens come back, in both passes. 0 for layers without experts.
    """

    name: str
    forward_s: float
    backward_s: float
    gradient_bytes: int
    alltoall_bytes: int = 0


CollectiveTime: TypeAlias = Callable[[int], float]
"""Maps a size in bytes to a collective's time in seconds. For an all-to-all, the size is that of one rank's data."""

BUCKETS_BYTES = (10**6, 10**7, 10**8, 10**9)
"""Bucket sizes in bytes that Zhao et al. (appendix A.4) consider; they use the fastest of these."""


@dataclass(frozen=True, slots=True)
class Iteration:
    """The time of one training iteration: the sum of computation, all-to-all and exposed allreduce.

    compute_s, alltoall_s: seconds of computation and of all-to-alls
    exposed_allreduce_s: seconds in which ranks neither compute nor exchange tokens, but wait for an allreduce
    allreduce_s:         total seconds of all allreduces, including time hidden behind computation
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
    """Predict the times of one iteration for a model with `layers` in forward order. All ranks take equally long.

    Computation and communication are two streams. The communication stream executes one collective at a time, in order.
    During the backward pass, gradients are collected in a bucket. Once the bucket reaches `bucket_bytes` (layers are
    never split), an allreduce sums its gradients while the next layers are computed. The remaining gradients are summed
    at the end. Mixture-of-experts layers do one all-to-all before and one after their computation, in both passes. An
    all-to-all waits for earlier allreduces, and computation waits for the all-to-all. O(layers).
    """
    if bucket_bytes < 1:
        raise InvalidInput("a bucket must hold at least 1 byte", bucket_bytes, "choose a larger bucket, such as 25M")
    now_s = free_s = 0.0  # end of the computation so far; time at which the network is free again
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
    """Return the fastest iteration (the first of equally fast ones) over all bucket sizes in `buckets_bytes`."""
    iterations = [train_iteration(layers, bucket_bytes, allreduce, alltoall) for bucket_bytes in buckets_bytes]
    return min(iterations, key=lambda iteration: iteration.total_s)
