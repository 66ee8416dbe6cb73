"""Changes a running emulated fabric: cuts, mends and slows down links, and routes packets around dead ones."""

import subprocess
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction

from chorale.runners.fabric.fabric import EmulatedFabric, enter_command
from chorale.runners.fabric.links import WIRE_MTU_BYTES, window_frames, wire_queue_bytes
from chorale.runners.fabric.plan import device_name, namespace_name, next_hops, rank_address
from chorale.synth.errors import Unavailable
from chorale.synth.topology.topology import Topology

_LIMIT_S = 30.0

Pair = tuple[int, int]


def cut(fabric: EmulatedFabric, nodes: Pair) -> None:
    """Take the cable between two nodes out of service, in both directions."""
    _run(fabric, _on_both_ends(nodes, "ip link set {device} down"))


def mend(fabric: EmulatedFabric, nodes: Pair, whole: Topology) -> None:
    """Put the cable between two nodes back into service, and restore the original routes over it.

    The kernel forgets routes over a device that goes down.
    """
    _run(fabric, _on_both_ends(nodes, "ip link set {device} up"))
    over_it = {nodes, nodes[::-1]}
    _run(
        fabric,
        (
            (node, line)
            for node, peer, line in _routes(fabric, whole, whole, range(whole.node_count))
            if (node, peer) in over_it
        ),
    )


def slow_down(fabric: EmulatedFabric, nodes: Pair, link_mbps: Fraction) -> None:
    """Limit both directions of the cable between two nodes to `link_mbps`."""
    rate = int(link_mbps * 10**6)
    burst_bytes = max(rate // 8000, WIRE_MTU_BYTES + 100)  # bytes sent in a millisecond
    bucket = f"tbf rate {rate}bit burst {burst_bytes} limit {wire_queue_bytes(rate, Fraction(0))}"
    _run(fabric, _on_both_ends(nodes, f"tc qdisc replace dev {{device}} root {bucket}"))


def reroute(fabric: EmulatedFabric, whole: Topology, remaining: Topology, nodes: Sequence[int]) -> None:
    """Route every node's packets over shortest paths of `remaining`, the working part of the topology `whole`.

    nodes: for each node of `remaining`, its number in `whole`; other nodes neither receive nor forward packets

    Routing protocols and subnet managers do the same on real networks: connections survive, and TCP sends lost packets
    again.
    """
    _run(fabric, ((node, line) for node, _, line in _routes(fabric, whole, remaining, nodes)))


def _routes(
    fabric: EmulatedFabric, whole: Topology, remaining: Topology, nodes: Sequence[int]
) -> Iterator[tuple[int, int, str]]:
    """Yield (node, next node, command that sets the route) for every pair of a node and a rank that it can reach."""
    rate = int(fabric.link_mbps * 10**6)
    frames = window_frames(rate, Fraction(fabric.links.latency_us), WIRE_MTU_BYTES)
    windows = f"initcwnd {frames} cwnd lock {frames} initrwnd {frames}"
    for node, hops in zip(nodes, next_hops(remaining), strict=True):
        source = f" src {rank_address(node)}" if node < whole.compute_count else ""
        for rank, peer in zip(nodes, hops, strict=False):  # ranks come before switches
            if rank != node:
                target = f"{rank_address(rank)}/32 dev {device_name(nodes[peer])}"
                yield node, nodes[peer], f"ip route replace {target}{source} {windows}"


def _on_both_ends(nodes: Pair, command: str) -> Iterator[tuple[int, str]]:
    for node, peer in (nodes, nodes[::-1]):
        yield node, command.format(device=device_name(peer))


def _run(fabric: EmulatedFabric, commands: Iterable[tuple[int, str]]) -> None:
    """Run (node, command) pairs in the nodes' namespaces. Raises Unavailable, with the output, if a command fails."""
    by_node: dict[int, list[str]] = {}
    for node, command in commands:
        by_node.setdefault(node, []).append(command)
    lines = ["set -e"]
    for node, of_node in by_node.items():
        lines += [f"nsenter --net=/run/netns/{namespace_name(fabric.name, node)} sh -e <<'NODE'", *of_node, "NODE"]
    enter = [*enter_command(fabric.pid, fabric.in_user_namespace, "--mount", "--net"), "sh"]
    done = subprocess.run(  # noqa: S603 - the script is our own
        enter, input="\n".join([*lines, ""]), capture_output=True, text=True, check=False, timeout=_LIMIT_S
    )
    if done.returncode != 0:
        rule = f"the links and routes of fabric {fabric.name} must be changed while it is up"
        raise Unavailable(rule, (done.stderr or done.stdout).strip(), "see `chorale fabric status`")
