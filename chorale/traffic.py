"""Plans an all-to-all with given sizes: arrays in, arrays out, for frameworks that make a plan for every batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from threading import Lock
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from chorale.design import DesignedSchedule, Network, in_words_of_arguments, network_of, verify
from chorale.synth.errors import InvalidInput
from chorale.synth.methods.traffic.copies import DispatchPlan
from chorale.synth.methods.traffic.copies import plan_dispatch as _plan_dispatch
from chorale.synth.methods.traffic.matrix import TrafficMatrix, require_ranks, traffic_matrix
from chorale.synth.methods.traffic.plan import TrafficPlan, certificate_of, traffic_schedule
from chorale.synth.methods.traffic.planner import along, bound_on, plan_amounts
from chorale.synth.methods.traffic.tokens import TokenBatch, route_tokens
from chorale.synth.methods.traffic.two_level import Pieces, RailPlan
from chorale.synth.topology.grammar import FILE_PREFIX
from chorale.synth.topology.topology import Topology, bytes_per_second

Traffic: TypeAlias = "NDArray[np.integer[Any]] | Sequence[Sequence[int]]"
"""Row s, column t: amount that rank s sends to rank t, in bytes or any other unit."""


@in_words_of_arguments
def plan_alltoall(network: Network, traffic: Traffic) -> AllToAllPlan:
    """Plan `traffic` at least as fast as any way in which libraries send it; also prove a lower bound on its time.

    Thread-safe; uses no processes or files. On boxes with rails a call takes 0.3 ms for 64 GPUs and 40 ms for 1,024
    GPUs. The first call takes longer, because it analyses the network. To benefit from that, pass the same topology
    object (from `chorale.topology`) every time.

    Args:
        network: A topology, a spec or a NetworkX graph.
        traffic: A whole number for each pair of ranks. What ranks keep, on the diagonal, crosses no link.

    Raises:
        InvalidInput: The traffic is not a square of whole numbers, or is not for this network.

    >>> plan = plan_alltoall("h100:2", np.full((16, 16), 1000))
    >>> plan.method, float(plan.time), plan.gap
    ('direct', 160.0, Fraction(0, 1))
    """
    topology = _known(network) if isinstance(network, str) else network_of(network)
    return AllToAllPlan(plan_amounts(topology, _matrix(traffic)))


def _known(spec: str) -> Topology:
    return network_of(spec) if spec.startswith(FILE_PREFIX) else _topology_of(spec)


@lru_cache(maxsize=16)
def _topology_of(spec: str) -> Topology:
    return network_of(spec)


def _matrix(traffic: Traffic) -> TrafficMatrix:
    return traffic_matrix("traffic", traffic)


@dataclass(frozen=True, slots=True, eq=False)
class AllToAllPlan:
    """A plan; `plan` has the details.

    time, bound: time of the busiest link and the proven least time of any plan, in amount / bandwidth.
    """

    plan: TrafficPlan

    @property
    def method(self) -> str:
        """Return how the plan was found: `two level`, `direct`, `sender rail`, `receiver rail`, `lp` or `prices`."""
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
        """Prices of links that prove the bound; `chorale.synth` has separate code that checks them."""
        return dict(certificate_of(self.plan))

    @property
    def pieces(self) -> Pieces:
        """Return arrays `source`, `target`, `sender`, `receiver` and `amount`; only for boxes with rails.

        Row i: `amount` goes from `source` to `sender` in its box, over its NIC to the NIC of `receiver`, and from there
        to `target`. Within a box, sender and receiver are -1. The rows of a pair add up to its amount, in that order.
        """
        if not isinstance(self.plan, RailPlan):
            rule = "pieces are for boxes with rails"
            raise InvalidInput(rule, self.plan.topology.spec, "take the transfers of schedule()")
        return self.plan.pieces

    def schedule(self) -> DesignedSchedule:
        """Return the verified schedule, for `lower` and `run`."""
        return verify(traffic_schedule(self.plan))

    def seconds(self, time: Fraction | None = None) -> float:
        """Return the seconds that bandwidths allow for amounts in bytes; of `time` if it is given."""
        return float((self.time if time is None else time) / bytes_per_second(self.plan.topology))

    @in_words_of_arguments
    def with_traffic(self, traffic: Traffic) -> AllToAllPlan:
        """Return the plan that sends other traffic in the proportions of this one, and its own bound."""
        matrix = _matrix(traffic)
        require_ranks(matrix, self.plan.topology.compute_count, self.plan.topology.spec)
        return AllToAllPlan(along(self.plan, matrix))

    def __repr__(self) -> str:
        behind = "optimal, proven" if self.gap == 0 else f"{float(self.gap):.2%} above the proven bound"
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
    """Plan the dispatch of tokens to their experts, and the combine that sums results on the way back.

    A token with several experts on one node crosses to it once and is copied there. Thread-safe, without processes or
    files. `.time`, `.bound`, `.gap` and `.combine_time` are in amount / bandwidth; `verify(plan.schedule())` and
    `verify(plan.schedule(combine=True))` give the verified schedules.

    Args:
        network: A topology, a spec or a NetworkX graph.
        experts: A row of experts for each token; -1 is none.
        sources: The rank that has each token; equal blocks of tokens by default.
        placement: The ranks of each expert (several for replicas, -1 for none); equal blocks of experts by default.
        token_bytes: Bytes of a token.

    Raises:
        InvalidInput: A rank or an expert does not exist, or no token leaves its rank.

    >>> plan = plan_dispatch("h100:2", [[8, 9, 10, 11]] * 8, sources=range(8), placement=np.arange(16)[:, None])
    >>> plan.method, float(plan.time), plan.gap == 0
    ('two level', 0.02, True)
    """
    topology = _known(network) if isinstance(network, str) else network_of(network)
    rows, ranks = np.asarray(experts, dtype=np.int64), topology.compute_count
    if rows.ndim != 2 or not rows.size:
        raise InvalidInput("experts must have a row for each token", f"shape {rows.shape}", "give int[tokens, k]")
    placed, tokens = max(int(rows.max()) + 1, 1), len(rows)
    hosts = np.arange(placed)[:, None] * ranks // placed if placement is None else np.asarray(placement, np.int64)
    own = np.arange(tokens) * ranks // tokens if sources is None else np.asarray(sources, np.int64)
    hosts = hosts.reshape(len(hosts), -1)
    return _plan_dispatch(topology, route_tokens(TokenBatch("tokens", rows, own, hosts, token_bytes), ranks))


class Replanner:
    """Reuses a plan as long as a new one would not be worth its cost. Call it with the traffic of each batch, in bytes.

    A new plan is made if, by the bound, it could save more than it costs, and is kept if it does. Thread-safe.

    >>> replanner = Replanner("h100:2", cost_s=1e-3)
    >>> first = replanner(np.full((16, 16), 1000))
    >>> replanner(np.full((16, 16), 1001)).time == first.time * Fraction(1001, 1000), replanner.plans
    (True, 1)
    """

    def __init__(self, network: Network, cost_s: float, batches: int = 1) -> None:
        """Set the cost of a new plan, in seconds, and the number of batches for which it is likely to serve."""
        self.topology = _known(network) if isinstance(network, str) else network_of(network)
        self.cost_s = cost_s
        self.batches = batches
        self.plans = 0
        self._lock = Lock()
        self._last: AllToAllPlan | None = None

    @in_words_of_arguments
    def __call__(self, traffic: Traffic) -> AllToAllPlan:
        """Return a plan for this batch: either the last plan applied to the new traffic, or a new plan."""
        matrix = _matrix(traffic)
        require_ranks(matrix, self.topology.compute_count, self.topology.spec)
        with self._lock:
            last = self._last
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
