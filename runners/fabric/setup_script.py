"""The shell texts that set a planned fabric up, from within the namespaces of its holder."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from chorale.runners.fabric.link_options import LinkKind
from chorale.runners.fabric.link_shape import (
    BUCKET_FRAME_BYTES,
    BUCKET_MTU_BYTES,
    BUCKET_PEAK,
    BUCKET_PIECE_BYTES,
    WIRE_MTU_BYTES,
    bucket_burst_bytes,
    bucket_limit_bytes,
    window_frames,
    wire_piece_bytes,
)
from chorale.runners.fabric.paths import arc_latency_us, path_of
from chorale.runners.fabric.plan import NODE_DEVICE, FabricPlan, device_name, namespace_name, rank_address

CONGESTION_CONTROL = "reno"

# All devices share one hardware address and resolve none: a frame is welcome at whichever end of whichever cable it
# comes out, also when it was meant for another cable and redirected.
_HARDWARE_ADDRESS = "02:00:00:00:00:01"
_TCP_HEADER_WORDS = range(5, 16)
_WAITING_PACKETS = 4096

# A namespace has the congestion control of the machine, which may pace by itself. What a link carried before must not
# show: neither as metrics of its routes nor as a window that shrinks in pauses.
_SETTINGS = f"""\
cd /proc/sys/net/ipv4
echo 1 > ip_forward
for file in conf/*/rp_filter; do echo 0 > $file; done
for file in /proc/sys/net/ipv6/conf/*/disable_ipv6; do if [ -e $file ]; then echo 1 > $file; fi; done
echo {CONGESTION_CONTROL} > tcp_congestion_control
echo 131072 > tcp_limit_output_bytes
echo 0 > tcp_slow_start_after_idle
echo 1 > tcp_no_metrics_save
echo 4096 4194304 16777216 > tcp_rmem
echo 4096 65536 16777216 > tcp_wmem"""


def namespaces_script(plan: FabricPlan) -> str:
    """Return a script for `sh` that makes all namespaces of `plan`."""
    nodes = (f"netns add {namespace_name(plan.name, node)}" for node in range(len(plan.routes)))
    return "\n".join(["set -e", "ip -batch - <<'NAMESPACES'", *nodes, "NAMESPACES", ""])


def cables_script(plan: FabricPlan) -> str:
    """Return a script for `sh` that makes the cables over which the kernel carries packets."""
    return "\n".join(["set -e", "ip -batch - <<'CABLES'", *_cables(plan), "CABLES", ""])


def nodes_script(plan: FabricPlan, kind: LinkKind) -> str:
    """Return a script for `sh` that sets up what is inside the namespaces: settings, devices, queues and routes.

    The devices of all cables have to be there.
    """
    return "\n".join(["set -e", *_nodes(plan, kind), ""])


def _cables(plan: FabricPlan) -> Iterator[str]:
    facts = f"mtu {BUCKET_MTU_BYTES} address {_HARDWARE_ADDRESS}"
    for cable in plan.cables:
        u, v = cable.nodes
        ends = [
            f"{device_name(peer)} netns {namespace_name(plan.name, node)} {facts}" for node, peer in ((u, v), (v, u))
        ]
        yield f"link add {ends[0]} type veth peer name {ends[1]}"


def _nodes(plan: FabricPlan, kind: LinkKind) -> Iterator[str]:
    outgoing: list[dict[int, int]] = [{} for _ in plan.routes]
    for cable in plan.cables:
        (u, v), (forward, back) = cable.nodes, cable.bits_per_s
        outgoing[u][v], outgoing[v][u] = forward, back
    paced = [
        {peer: rate or outgoing[peer][node] for peer, rate in rates.items()} for node, rates in enumerate(outgoing)
    ]
    for node, rates in enumerate(outgoing):
        queues = _queues(paced[node]) if kind == LinkKind.BUCKET else _no_queues(paced[node])
        yield f"nsenter --net=/run/netns/{namespace_name(plan.name, node)} sh -e <<'NODE'"
        yield _SETTINGS
        yield from ("ip -batch - <<'DEVICES'", *_devices(plan, kind, node, paced[node]), "DEVICES")
        yield from ("tc -batch - <<'QUEUES'", *queues, *_detours(plan, node, rates), "QUEUES")
        yield "NODE"


def _devices(plan: FabricPlan, kind: LinkKind, node: int, rates: dict[int, int]) -> Iterator[str]:
    """Yield lines of `ip` for one node: its devices, then a route to every other rank."""
    mtu_bytes = WIRE_MTU_BYTES if kind == LinkKind.WIRE else BUCKET_MTU_BYTES
    yield "link set lo up"
    latency_us = arc_latency_us(plan)
    source = ""
    if node < plan.compute_count:
        source = f" src {rank_address(node)}"
        # A pair of its own, because runtimes look for a device with an address that is not the loopback.
        yield f"link add {NODE_DEVICE} mtu {mtu_bytes} type veth peer name {NODE_DEVICE}-peer"
        yield f"address add {rank_address(node)}/32 dev {NODE_DEVICE}"
        yield f"link set {NODE_DEVICE} up"
        yield f"link set {NODE_DEVICE}-peer up"
    for peer, rate in sorted(rates.items()):
        at_switch = max(node, peer) >= plan.compute_count
        piece_bytes = wire_piece_bytes(rate, at_switch) if kind == LinkKind.WIRE else BUCKET_PIECE_BYTES
        shape = f"mtu {mtu_bytes} gso_max_size {piece_bytes} txqueuelen {_WAITING_PACKETS}"
        yield f"link set {device_name(peer)} {shape} arp off up"
    for rank, peer in enumerate(plan.routes[node]):
        if rank != node:
            path_latency_us = sum((latency_us[arc] for arc in path_of(plan, (node, rank))), Fraction(0))
            frames = window_frames(rates[peer], path_latency_us, mtu_bytes)
            windows = f"initcwnd {frames} cwnd lock {frames} initrwnd {frames}"
            yield f"route add {rank_address(rank)}/32 dev {device_name(peer)}{source} {windows}"


def _queues(rates: dict[int, int]) -> Iterator[str]:
    """Yield lines of `tc` that hold each outgoing link to its rate, as far as a bucket can.

    The bucket is as small as frames and late timers allow. What it saved in a pause leaves at the peak rate.
    """
    for peer, rate in sorted(rates.items()):
        bucket = f"rate {rate}bit burst {bucket_burst_bytes(rate)} limit {bucket_limit_bytes(rate)}"
        peak = f"peakrate {int(rate * BUCKET_PEAK)}bit mtu {BUCKET_FRAME_BYTES}"
        yield f"qdisc add dev {device_name(peer)} root tbf {bucket} {peak}"


def _no_queues(rates: dict[int, int]) -> Iterator[str]:
    """Yield lines of `tc` that hand packets to their device at once: the wire has a queue of its own."""
    for peer in sorted(rates):
        yield f"qdisc add dev {device_name(peer)} root noqueue"


def _detours(plan: FabricPlan, node: int, rates: dict[int, int]) -> Iterator[str]:
    """Yield lines of `tc` that send acknowledgements back along links that go one way only.

    Those are the TCP packets that have the size of their headers, which are what the filters compare. Anything with
    data takes the path that real links offer, as routed: nobody gains bandwidth from the way back.
    """
    backward = [peer for peer, rate in sorted(rates.items()) if not rate and peer < plan.compute_count]
    for device in sorted({plan.routes[node][peer] for peer in backward}):
        yield f"qdisc add dev {device_name(device)} clsact"
    for peer in backward:
        target = f"u32 match ip dst {rank_address(peer)}/32 match ip protocol 6 0xff match u8 0x45 0xff at 0"
        routed = device_name(plan.routes[node][peer])
        for words in _TCP_HEADER_WORDS:
            no_data = f"match u16 {20 + 4 * words} 0xffff at 2 match u8 {words << 4:#x} 0xf0 at 32"
            action = f"action mirred egress redirect dev {device_name(peer)}"
            yield f"filter add dev {routed} egress protocol ip {target} {no_data} {action}"
