"""Plan all-to-alls with given message sizes, for frameworks that make a plan for each batch.

Message sizes are passed as arrays, and a plan's transfers are returned as arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from numbers import Real
from threading import Lock
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from chorale.design import DesignedSchedule, Network, in_words_of_arguments, network_of, verify
from chorale.synth.errors import InvalidInput
from chorale.synth.methods.traffic.copies import DispatchPlan, plan_dispatch as _plan_dispatch
from chorale.synth.methods.traffic.matrix import MAX_AMOUNT, as_array, require_ranks, traffic_matrix
from chorale.synth.methods.traffic.plan import TrafficPlan, certificate_of, traffic_schedule
from chorale.synth.methods.traffic.planner import along, bound_on, in_chunks, plan_amounts
from chorale.synth.methods.traffic.tokens import MAX_TOKENS, TokenBatch, route_tokens
from chorale.synth.methods.traffic.two_level import Pieces, RailPlan
from chorale.synth.topology.registry import FILE_PREFIX
from chorale.synth.topology.topology import Topology, bytes_per_second
from chorale.tuner.reports.bound import gap_verdict

Traffic: TypeAlias = "NDArray[np.integer[Any]] | Sequence[Sequence[int]]"
"""A matrix whose entry in row s and column t is the amount that rank s sends to rank t, in bytes or any other unit."""
_built = lru_cache(maxsize=16)(network_of)


@in_words_of_arguments
def plan_alltoall(network: Network, traffic: Traffic) -> AllToAllPlan:
    """Return a plan for `traffic`, at least as fast as a communication library's plan, and a proven lower bound.

    Thread-safe; starts no processes and uses no files. On GPU boxes connected by rails, a call takes 0.3 ms for 64 GPUs
    and 40 ms for 1,024 GPUs. The first call is slower because it analyses the network. To analyse it only once, pass
    the same topology object (from `chorale.topology`) every time.

    Args:
        network: A topology, a spec or a NetworkX graph.
        traffic: Matrix of integers: the amount that each sender (row) sends to each receiver (column). The diagonal
            contains the amounts that ranks keep. If no rank sends anything, the plan takes no time and has no schedule.

    Raises:
        InvalidInput: The traffic is not a square matrix of whole numbers, or has the wrong number of ranks.

    >>> plan = plan_alltoall("h100:2", np.full((16, 16), 1000))
    >>> plan.method, float(plan.time), plan.gap
    ('direct', 160.0, Fraction(0, 1))
    """
    return AllToAllPlan(plan_amounts(_topology(network), traffic_matrix("traffic", traffic)))


def _topology(network: Network) -> Topology:
    """Return the topology. Topologies built from specs are cached, except those from files, which may change."""
    is_fixed = isinstance(network, str) and not network.startswith(FILE_PREFIX)
    return _built(network) if is_fixed else network_of(network)


@dataclass(frozen=True, slots=True, eq=False)
class AllToAllPlan:
    """A plan for an all-to-all with given amounts.

    time:  time of the busiest link, in units of amount / bandwidth
    bound: proven lower bound on the time of every plan, in the same units
    """

    plan: TrafficPlan

    @property
    def method(self) -> str:
        """Name of the algorithm that computed the plan.

        Chorale's own algorithms are `two level`, `moves`, `lp` and `prices`. Communication libraries use `direct`,
        `sender rail` or `receiver rail`.
        """
        return self.plan.method

    @property
    def time(self) -> Fraction:
        return self.plan.time

    @property
    def bound(self) -> Fraction:
        return self.plan.bound.time

    @property
    def gap(self) -> Fraction:
        """Time above the bound, relative to the bound: 0 is optimal."""
        return self.plan.gap

    @property
    def certificate(self) -> dict[str, Any]:
        """Link prices that prove the bound; `chorale.synth` has separate code that checks them."""
        return dict(certificate_of(self.plan))

    @property
    def pieces(self) -> Pieces:
        """Return arrays `source`, `target`, `sender`, `receiver`, `amount` of all transfers; only for boxes with rails.

        Element i of each array describes a transfer: `amount` goes from `source` to `sender` in the same box, from the
        sender's NIC to the receiver's, and on to `target`. If source and target are in the same box, there are four
        cases: sender and receiver are both -1 if the data is sent directly. Both are the relaying rank if one rank
        relays the data. They equal source and target if the data uses the NICs of these two ranks. Otherwise, they are
        the corresponding ranks of another box, which relay the data over the NICs of all four ranks. The transfers from
        a source to a target are consecutive parts of the pair's amount, in order.
        """
        if not isinstance(self.plan, RailPlan):
            rule = "pieces are for boxes with rails"
            raise InvalidInput(rule, self.plan.topology.spec, "use the transfers of schedule()")
        return self.plan.pieces

    def schedule(self) -> DesignedSchedule:
        """Return a verified schedule for `lower` and `run`. Amounts above 2^31 - 1 are converted to larger units."""
        return verify(traffic_schedule(in_chunks(self.plan)))

    def seconds(self, time: Fraction | None = None) -> float:
        """Convert `time` (default: the plan's time) to seconds, assuming that amounts are in bytes."""
        return float((self.time if time is None else time) / bytes_per_second(self.plan.topology))

    @in_words_of_arguments
    def with_traffic(self, traffic: Traffic) -> AllToAllPlan:
        """Return a plan and bound for other traffic, which is sent over the same routes in the same proportions."""
        matrix = traffic_matrix("traffic", traffic)
        require_ranks(matrix, self.plan.topology.compute_count, self.plan.topology.spec)
        return AllToAllPlan(along(self.plan, matrix))

    def __repr__(self) -> str:
        behind = gap_verdict(self.gap, self.certificate)
        return f"<all-to-all on {self.plan.topology.spec}: {self.method}, time {float(self.time):.6g}, {behind}>"


@in_words_of_arguments
def plan_dispatch(
    network: Network,
    experts: NDArray[np.integer[Any]] | Sequence[Sequence[int]],
    *,
    sources: Sequence[int] | NDArray[np.integer[Any]] | None = None,
    placement: Sequence[Sequence[int]] | NDArray[np.integer[Any]] | None = None,
    token_bytes: int = 1,
) -> DispatchPlan:
    """Plan the dispatch of tokens to experts, and the combine, which adds up the experts' results on the way back.

    A rank that holds several experts of a token receives the token only once and copies it for each of them.
    Thread-safe; starts no processes and uses no files. `.time`, `.bound` and `.combine_time` are in units of amount /
    bandwidth. `verify(plan.schedule())` and `verify(plan.schedule(combine=True))` return the verified schedules.

    Args:
        network: A topology, a spec or a NetworkX graph.
        experts: One row per token with the numbers of its experts, padded with -1. If no token leaves its rank, the
            plan takes no time and has no schedule.
        sources: The rank that holds each token. By default, each rank holds an equal block of tokens.
        placement: The ranks that hold each expert: several if it has replicas, padded with -1. By default, each rank
            holds an equal block of experts.
        token_bytes: Size of a token in bytes.

    Raises:
        InvalidInput: A rank or an expert does not exist.

    >>> plan = plan_dispatch("h100:2", [[8, 9, 10, 11]] * 8, sources=range(8), placement=np.arange(16)[:, None])
    >>> plan.method, float(plan.time), plan.gap == 0
    ('two level', 0.02, True)
    """
    topology = _topology(network)
    rows, ranks = _whole("experts", experts, (2,)), topology.compute_count
    placed, tokens = int(rows.max(initial=0)) + 1, len(rows)
    hosts = _whole("placement", np.arange(placed) * ranks // placed if placement is None else placement, (1, 2))
    own = _whole("sources", np.arange(tokens) * ranks // max(tokens, 1) if sources is None else sources, (1,))
    token_bytes = int(_whole("token_bytes", token_bytes, (0,), MAX_AMOUNT))
    hosts = hosts.reshape(len(hosts), -1)
    return _plan_dispatch(topology, route_tokens(TokenBatch("tokens", rows, own, hosts, token_bytes), ranks))


def _whole(name: str, given: Any, dimensions: tuple[int, ...], most: int = MAX_TOKENS) -> NDArray[np.int64]:
    numbers = as_array(given)
    if numbers.dtype.kind not in "iu" or numbers.ndim not in dimensions:
        rule = f"{name} must be an array of whole numbers with {' or '.join(map(str, dimensions))} dimensions"
        raise InvalidInput(rule, f"{numbers.dtype.name} of shape {numbers.shape}", "fill short rows with -1")
    if int(numbers.max(initial=0)) > most:
        raise InvalidInput(f"{name} must be at most {most}", int(numbers.max()), "number experts and ranks from 0")
    return numbers.astype(np.int64)


class Replanner:
    """Reuses a plan until a new one saves more time than computing it takes. Call the object with each batch's traffic.

    Traffic is in bytes. If the lower bound shows that a new plan could save more time than its computation takes, a new
    plan is computed. The new plan is used if it does save more time than that. Thread-safe.

    >>> replanner = Replanner("h100:2", cost_s=1e-3)
    >>> first = replanner(np.full((16, 16), 1000))
    >>> replanner(np.full((16, 16), 1001)).time == first.time * Fraction(1001, 1000), replanner.plans
    (True, 1)
    """

    def __init__(self, network: Network, cost_s: float, batches: int = 1) -> None:
        """Set the cost in seconds of computing a plan, and the number of batches that are likely to use the same plan.

        Raises InvalidInput for a network without bandwidths, because times in seconds are then unknown.
        """
        self.topology = _topology(network)
        bytes_per_second(self.topology)
        limits: Any = ("cost_s", cost_s, 0), ("batches", batches, 1)  # not every caller has a type checker
        for name, value, least in limits:
            if not isinstance(value, Real) or not value >= least:
                raise InvalidInput(f"{name} must be a number of at least {least}", repr(value), "estimate it")
        self.cost_s = cost_s
        self.batches = batches
        self.plans = 0
        self._lock = Lock()
        self._last: AllToAllPlan | None = None

    @in_words_of_arguments
    def __call__(self, traffic: Traffic) -> AllToAllPlan:
        """Return a plan for this batch: either the last plan applied to the new traffic, or a new plan."""
        matrix = traffic_matrix("traffic", traffic)
        require_ranks(matrix, self.topology.compute_count, self.topology.spec)
        with self._lock:
            last = self._last
        if not matrix.sent.any():
            return AllToAllPlan(plan_amounts(self.topology, matrix))
        if last is not None:
            kept = AllToAllPlan(along(last.plan, matrix))
            if self._gain_s(kept, bound_on(self.topology, matrix)) <= self.cost_s:
                return kept
        new = AllToAllPlan(plan_amounts(self.topology, matrix))
        if last is not None and self._gain_s(kept, new.time) <= self.cost_s:
            return kept
        with self._lock:
            self._last = new
            self.plans += 1
        return new

    def _gain_s(self, kept: AllToAllPlan, time: Fraction) -> float:
        return self.batches * (kept.seconds() - kept.seconds(time))
