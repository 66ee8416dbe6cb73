"""The shell text that sets a planned fabric up, from within the namespaces of its holder."""

from __future__ import annotations

from collections.abc import Iterator

from chorale.runners.fabric.plan import MTU_BYTES, NODE_DEVICE, FabricPlan, device_name, namespace_name, rank_address

# All devices share one hardware address and resolve none: a frame is welcome at whichever end of whichever cable it
# comes out, also when it was meant for another cable and redirected.
_HARDWARE_ADDRESS = "02:00:00:00:00:01"
_FRAME_BYTES = MTU_BYTES + 14
_QUEUE_S = 0.2
_BURST_S = 0.001
# Acknowledgements have at most 60 + 60 bytes of IP and TCP headers.
_UP_TO_127_BYTES = "match u16 0 0xff80 at 2"

_SETTINGS = """\
echo 1 > /proc/sys/net/ipv4/ip_forward
for file in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 0 > $file; done
for file in /proc/sys/net/ipv6/conf/*/disable_ipv6; do if [ -e $file ]; then echo 1 > $file; fi; done"""


def setup_script(plan: FabricPlan) -> str:
    """Return a script for `sh` that makes all namespaces, devices, queues and routes of `plan`, or fails."""
    return "\n".join(["set -e", "ip -batch - <<'CABLES'", *_cables(plan), "CABLES", *_nodes(plan), ""])


def _cables(plan: FabricPlan) -> Iterator[str]:
    for node in range(len(plan.routes)):
        yield f"netns add {namespace_name(plan.name, node)}"
    facts = f"mtu {MTU_BYTES} address {_HARDWARE_ADDRESS}"
    for cable in plan.cables:
        u, v = cable.nodes
        ends = [
            f"{device_name(peer)} netns {namespace_name(plan.name, node)} {facts}" for node, peer in ((u, v), (v, u))
        ]
        yield f"link add {ends[0]} type veth peer name {ends[1]}"


def _nodes(plan: FabricPlan) -> Iterator[str]:
    outgoing: list[dict[int, int]] = [{} for _ in plan.routes]
    for cable in plan.cables:
        (u, v), (forward, back) = cable.nodes, cable.bits_per_s
        outgoing[u][v], outgoing[v][u] = forward, back
    for node, rates in enumerate(outgoing):
        yield f"nsenter --net=/run/netns/{namespace_name(plan.name, node)} sh -e <<'NODE'"
        yield _SETTINGS
        yield from ("ip -batch - <<'DEVICES'", *_devices(plan, node, rates), "DEVICES")
        yield from ("tc -batch - <<'QUEUES'", *_queues(rates), *_detours(plan, node, rates), "QUEUES")
        yield "NODE"


def _devices(plan: FabricPlan, node: int, rates: dict[int, int]) -> Iterator[str]:
    """Yield lines of `ip` for one node: its devices, then a route to every other rank."""
    yield "link set lo up"
    source = ""
    if node < plan.compute_count:
        source = f" src {rank_address(node)}"
        # A pair of its own, because runtimes look for a device with an address that is not the loopback.
        yield f"link add {NODE_DEVICE} mtu {MTU_BYTES} type veth peer name {NODE_DEVICE}-peer"
        yield f"address add {rank_address(node)}/32 dev {NODE_DEVICE}"
        yield f"link set {NODE_DEVICE} up"
        yield f"link set {NODE_DEVICE}-peer up"
    for peer in sorted(rates):
        yield f"link set {device_name(peer)} arp off up"
    for rank, peer in enumerate(plan.routes[node]):
        if rank != node:
            yield f"route add {rank_address(rank)}/32 dev {device_name(peer)}{source}"


def _queues(rates: dict[int, int]) -> Iterator[str]:
    """Yield lines of `tc` that hold each outgoing link to its rate.

    The bucket is as small as frames and timers allow, because a larger one would let small messages through unpaced.
    """
    for peer, rate in sorted(rates.items()):
        if rate:
            burst = max(2 * _FRAME_BYTES, int(rate * _BURST_S) // 8)
            limit = burst + int(rate * _QUEUE_S) // 8
            yield f"qdisc add dev {device_name(peer)} root tbf rate {rate}bit burst {burst} limit {limit}"


def _detours(plan: FabricPlan, node: int, rates: dict[int, int]) -> Iterator[str]:
    """Yield lines of `tc` that send acknowledgements back along links that go one way only.

    Anything larger takes the way that real links offer, as routed: nobody gains bandwidth from the way back.
    """
    backward = [peer for peer, rate in sorted(rates.items()) if not rate and peer < plan.compute_count]
    for device in sorted({plan.routes[node][peer] for peer in backward}):
        yield f"qdisc add dev {device_name(device)} clsact"
    for peer in backward:
        small = f"u32 match ip dst {rank_address(peer)}/32 match ip protocol 6 0xff {_UP_TO_127_BYTES}"
        routed = device_name(plan.routes[node][peer])
        yield (
            f"filter add dev {routed} egress protocol ip {small} action mirred egress redirect dev {device_name(peer)}"
        )
