"""Flow-level simulation in exact rationals, slow and obvious: all rates anew at every event."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Flow:
    """`amount` over `links`; starts once all flows `after_left` have left and all `after_arrival` have arrived."""

    amount: Fraction
    links: tuple[int, ...]
    latency: Fraction = Fraction(0)
    after_left: tuple[int, ...] = ()
    after_arrival: tuple[int, ...] = ()


def fair_rates(routes: dict[int, tuple[int, ...]], capacity: Sequence[Fraction]) -> dict[int, Fraction]:
    """Return max-min fair rates by raising all rates together until a link is full, again and again."""
    rates = dict.fromkeys(routes, Fraction(0))
    open_flows = set(routes)
    while open_flows:
        rises = []
        for link, room in enumerate(capacity):
            users = sum(routes[flow].count(link) for flow in open_flows)
            if users:
                used = sum(rates[flow] * routes[flow].count(link) for flow in routes)
                rises.append(((room - used) / users, link))
        rise = min(rises)[0]
        for flow in open_flows:
            rates[flow] += rise
        full = {link for value, link in rises if value == rise}
        open_flows = {flow for flow in open_flows if not full & set(routes[flow])}
    return rates


def arrival_times(flows: Sequence[Flow], capacity: Sequence[Fraction], alpha: Fraction) -> list[Fraction | None]:
    """Return when each flow has arrived, None for one that never starts."""
    starts: dict[int, Fraction] = {}
    left: dict[int, Fraction] = {}
    remaining = [flow.amount for flow in flows]
    now = Fraction(0)
    while True:
        for index, flow in enumerate(flows):
            ready = _ready_at(flow, flows, left)
            if index not in starts and ready is not None:
                starts[index] = ready + alpha
        active = {i: flows[i].links for i, at in starts.items() if at <= now and i not in left}
        rates = fair_rates(active, capacity)
        coming = [at for at in starts.values() if at > now]
        coming += [now + remaining[i] / rates[i] for i in active]
        if not coming:
            return [left[i] + flow.latency if i in left else None for i, flow in enumerate(flows)]
        then = min(coming)
        for i in active:
            remaining[i] -= rates[i] * (then - now)
            if remaining[i] == 0:
                left[i] = then
        now = then


def _ready_at(flow: Flow, flows: Sequence[Flow], left: dict[int, Fraction]) -> Fraction | None:
    if any(other not in left for other in flow.after_left + flow.after_arrival):
        return None
    times = [left[other] for other in flow.after_left]
    times += [left[other] + flows[other].latency for other in flow.after_arrival]
    return max(times, default=Fraction(0))
