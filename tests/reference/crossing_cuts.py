"""All cuts of a small network, one by one."""

from collections.abc import Iterator, Sequence

Arc = tuple[int, int, int]
"""(source, destination, capacity)"""


def violated_sink_sides(
    nodes: int, arcs: Sequence[Arc], supply: Sequence[int], sinks: Sequence[int]
) -> Iterator[set[int]]:
    """Yield every node set with a sink inside that gets less capacity from outside than the supply out there."""
    for mask in range(1, 1 << nodes):
        inside = {node for node in range(nodes) if mask >> node & 1}
        if inside.isdisjoint(sinks):
            continue
        entering = sum(amount for src, dst, amount in arcs if dst in inside and src not in inside)
        if entering < sum(supply[node] for node in range(nodes) if node not in inside):
            yield inside
