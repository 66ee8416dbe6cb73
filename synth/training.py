"""The time of one iteration of data-parallel training, with or without experts: computation and communication overlap.

Sources: Li et al., "PyTorch Distributed: experiences on accelerating data parallel training", 2020 (buckets, wait-free
back-propagation); Zhao et al., "Efficient Direct-Connect Topologies for Collective Communications", appendix A.4.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from chorale.synth.errors import InvalidInput


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


CollectiveTime: TypeAlias = Callable[[int], float]
"""From bytes to seconds. Allreduce: of the vector; all-to-all: of what a rank sends to all others together."""

BUCKETS_BYTES = (10**6, 10**7, 10**8, 10**9)
"""The capacities among which appendix A.4 takes the best."""


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
    streams = _Streams(allreduce, alltoall)
    for layer in layers:
        streams.compute(layer, layer.forward_s)
    waiting_bytes = 0
    for layer in reversed(layers):
        streams.compute(layer, layer.backward_s)
        waiting_bytes += layer.gradient_bytes
        if waiting_bytes >= bucket_bytes:
            streams.send(waiting_bytes)
            waiting_bytes = 0
    if waiting_bytes:
        streams.send(waiting_bytes)
    streams.wait_for_network()
    return Iteration(
        bucket_bytes, streams.compute_s, streams.alltoall_s, streams.exposed_s, streams.allreduce_s, streams.allreduces
    )


def best_iteration(
    layers: Sequence[Layer], buckets_bytes: Sequence[int], allreduce: CollectiveTime, alltoall: CollectiveTime
) -> Iteration:
    """Return the shortest of the iterations with these capacities of a bucket (at least one); the first if equal."""
    iterations = [train_iteration(layers, bucket_bytes, allreduce, alltoall) for bucket_bytes in buckets_bytes]
    return min(iterations, key=lambda iteration: iteration.total_s)


@dataclass(slots=True)
class _Streams:
    """The two streams during an iteration: `now_s` of computation, `free_s` when the network has done all."""

    allreduce: CollectiveTime
    alltoall: CollectiveTime
    now_s: float = 0
    free_s: float = 0
    compute_s: float = field(default=0, init=False)
    alltoall_s: float = field(default=0, init=False)
    exposed_s: float = field(default=0, init=False)
    allreduce_s: float = field(default=0, init=False)
    allreduces: int = field(default=0, init=False)

    def compute(self, layer: Layer, seconds: float) -> None:
        """Compute for `seconds`, between two exchanges of tokens where the layer has experts."""
        self._exchange(layer.alltoall_bytes)
        self.now_s += seconds
        self.compute_s += seconds
        self._exchange(layer.alltoall_bytes)

    def send(self, size_bytes: int) -> None:
        """Begin an allreduce as soon as the network is free."""
        seconds = self.allreduce(size_bytes)
        self.free_s = max(self.free_s, self.now_s) + seconds
        self.allreduce_s += seconds
        self.allreduces += 1

    def wait_for_network(self) -> None:
        """Do nothing until everything sent has arrived."""
        waited_s = max(0, self.free_s - self.now_s)
        self.exposed_s += waited_s
        self.now_s += waited_s

    def _exchange(self, size_bytes: int) -> None:
        if size_bytes:
            self.wait_for_network()
            seconds = self.alltoall(size_bytes)
            self.now_s += seconds
            self.alltoall_s += seconds
