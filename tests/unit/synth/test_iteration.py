"""Iterations of training against closed forms and a simulation in ticks."""

from collections import Counter, deque

import pytest
from hypothesis import given, strategies as st

from chorale.synth.errors import InvalidInput
from chorale.synth.training import BUCKETS_BYTES, Layer, best_iteration, train_iteration

layers_of_whole_seconds = st.lists(
    st.builds(
        Layer,
        name=st.just("layer"),
        forward_s=st.integers(0, 4),
        backward_s=st.integers(0, 4),
        gradient_bytes=st.integers(0, 5),
        alltoall_bytes=st.sampled_from([0, 0, 1, 2]),
    ),
    max_size=6,
)
buckets = st.integers(1, 12)


def allreduce(size):
    return 2 + size


def alltoall(size):
    return 3 * size


def jobs_of(layers, bucket):
    jobs = []
    for layer in layers:
        jobs += [("exchange", layer.alltoall_bytes), ("compute", layer.forward_s), ("exchange", layer.alltoall_bytes)]
    held = 0
    for layer in reversed(layers):
        jobs += [("exchange", layer.alltoall_bytes), ("compute", layer.backward_s), ("exchange", layer.alltoall_bytes)]
        held += layer.gradient_bytes
        if held >= bucket:
            jobs.append(("send", held))
            held = 0
    return [job for job in [*jobs, ("send", held)] if job[1]]


def ticks_of(layers, bucket):
    """Walk through time second by second; what is being done in each of them."""
    jobs, network, left, kind = deque(jobs_of(layers, bucket)), deque(), 0, ""
    spent = Counter()
    while jobs or network or left:
        while not left and jobs and not (jobs[0][0] == "exchange" and network):
            kind, amount = jobs.popleft()
            if kind == "send":
                network.append(allreduce(amount))
            else:
                left = amount if kind == "compute" else alltoall(amount)
        spent[kind if left else "wait"] += 1
        left = max(0, left - 1)
        if network:
            network[0] -= 1
            if not network[0]:
                network.popleft()
    return spent


@given(layers_of_whole_seconds, buckets)
def test_like_a_walk_through_time(layers, bucket):
    iteration = train_iteration(layers, bucket, allreduce, alltoall)
    spent = ticks_of(layers, bucket)
    assert iteration.total_s == spent.total()
    assert (iteration.compute_s, iteration.alltoall_s) == (spent["compute"], spent["exchange"])
    assert iteration.exposed_allreduce_s == spent["wait"]
    sent = [allreduce(amount) for kind, amount in jobs_of(layers, bucket) if kind == "send"]
    assert (iteration.allreduce_s, iteration.allreduces) == (sum(sent), len(sent))


def test_the_best_bucket_is_chosen():
    layers = [Layer("layer", 1, 5, 3) for _ in range(5)]
    every = {bucket: train_iteration(layers, bucket, allreduce, alltoall) for bucket in range(1, 20)}
    best = best_iteration(layers, list(every), allreduce, alltoall)
    assert best.total_s == min(iteration.total_s for iteration in every.values())
    assert best == next(iteration for iteration in every.values() if iteration.total_s == best.total_s)
    assert best_iteration(layers, BUCKETS_BYTES, allreduce, alltoall).allreduces == 1


def test_a_bucket_holds_something():
    with pytest.raises(InvalidInput, match="at least 1 byte"):
        train_iteration([], 0, allreduce, alltoall)
