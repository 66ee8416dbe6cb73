"""What a pipelined schedule takes, from its rows alone: the link that is busy for longest."""

from fractions import Fraction

from chorale.synth.schedule.schedule import Schedule


def busiest_link(schedule: Schedule) -> Fraction:
    """Return the time per byte of the vector that the busiest link needs for all that is sent over it."""
    rows, routes, links = schedule.transfers, schedule.routes, list(schedule.topology.links)
    chunks = [0] * len(links)
    for route, first, behind in zip(rows.route.tolist(), rows.lo.tolist(), rows.hi.tolist(), strict=True):
        for link in routes.link_ids[int(routes.offsets[route]) : int(routes.offsets[route + 1])].tolist():
            chunks[link] += behind - first
    parts = schedule.topology.compute_count * schedule.chunks_per_shard
    return max(Fraction(count, parts) / link.bandwidth for count, link in zip(chunks, links, strict=True))
