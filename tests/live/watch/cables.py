"""Cables of a fabric that tests cut, mend and slow down while it is up."""

import subprocess

from chorale.runners.fabric.fabric import EmulatedFabric, enter_command, reroute
from chorale.synth.topology.topology import Topology

Pair = tuple[int, int]


def cut(fabric: EmulatedFabric, nodes: Pair) -> None:
    _at_both_ends(fabric, nodes, "ip link set {device} down")


def mend(fabric: EmulatedFabric, whole: Topology, *pairs: Pair) -> None:
    """Set all devices that are down up and restore the routes, which the kernel forgot when the devices went down."""
    for nodes in pairs:
        _at_both_ends(fabric, nodes, "ip link set {device} up")
    reroute(fabric, whole, whole, range(whole.node_count))


def slow_down(fabric: EmulatedFabric, nodes: Pair, bits_per_s: int) -> None:
    bucket = f"tbf rate {bits_per_s}bit burst {bits_per_s // 800} limit {2**21}"
    _at_both_ends(fabric, nodes, f"tc qdisc replace dev {{device}} root {bucket}")


def _at_both_ends(fabric: EmulatedFabric, nodes: Pair, command: str) -> None:
    for node, peer in (nodes, nodes[::-1]):
        network = f"nsenter --net=/run/netns/chorale-{fabric.name}-{node} "
        enter = [*enter_command(fabric.pid, fabric.in_user_namespace, "--mount", "--net"), "sh", "-c"]
        subprocess.run([*enter, network + command.format(device=f"to{peer}")], check=True, timeout=30)
