"""Plans a fabric for a topology: namespaces, cables between them and routes. Nothing here touches the kernel."""

import ipaddress
import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from chorale.runners.api.units import full_bandwidth
from chorale.synth.errors import InvalidInput
from chorale.synth.topology.distance import distances_to
from chorale.synth.topology.topology import Topology


def next_hops(topology: Topology) -> tuple[tuple[int, ...], ...]:
    """Return the neighbour to which each node (first index) forwards packets for each rank (second index).

    All routes are shortest paths, so there are no loops, and neighbours are reached over their direct link. If several
    neighbours are equally close to the rank, the one at index (node + rank) modulo their number is used, so that
    traffic spreads over paths of equal length without randomness. A rank's entry for itself is its own number. Raises
    InvalidInput for a network that is not strongly connected. O(ranks * links).
    """
    hops = distances_to(topology, np.arange(topology.compute_count)).astype(int).tolist()
    neighbours: list[set[int]] = [set() for _ in range(topology.node_count)]
    for src, dst in zip(topology.links.src.tolist(), topology.links.dst.tolist(), strict=True):
        neighbours[src].add(dst)

    def next_hop(node: int, rank: int) -> int:
        if node == rank:
            return rank
        nearer = [hop for hop in sorted(neighbours[node]) if hops[rank][hop] == hops[rank][node] - 1]
        return nearer[(node + rank) % len(nearer)]

    return tuple(
        tuple(next_hop(node, rank) for rank in range(topology.compute_count)) for node in range(topology.node_count)
    )


MAX_NODES = 256
NODE_DEVICE = "node"
"""Name of the network device that has a rank's address. Pass it to runtimes that need the name of an interface."""

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,22}[A-Za-z0-9])?")
_FIRST_ADDRESS = ipaddress.IPv4Address("10.99.0.1")
_SLOWEST_BITS_PER_S = 100_000
_FASTEST_BITS_PER_S = 100_000_000_000


@dataclass(frozen=True, slots=True)
class Cable:
    """A pair of connected devices between two neighbouring nodes.

    bits_per_s: for each direction (first node to second, second to first) the total rate of the parallel links. It is 0
                if the topology has no link in that direction. Such a direction only carries acknowledgements, at the
                rate of the other direction
    """

    nodes: tuple[int, int]
    bits_per_s: tuple[int, int]

    @property
    def arcs(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return both directions of the cable as (from node, to node)."""
        return self.nodes, self.nodes[::-1]


@dataclass(frozen=True, slots=True)
class FabricPlan:
    """The plan from which the fabric `name` is set up.

    Nodes are numbered as in the topology: first the `compute_count` ranks, then the switches.

    cables: one per pair of neighbouring nodes, sorted
    routes: `routes[node][rank]` is the neighbour to which `node` forwards packets for `rank`; `routes[rank][rank]` is
            `rank`
    """

    name: str
    compute_count: int
    cables: tuple[Cable, ...]
    routes: tuple[tuple[int, ...], ...]

    @property
    def bits_per_s(self) -> int:
        return sum(sum(cable.bits_per_s) for cable in self.cables)


def plan_fabric(topology: Topology, link_mbps: Fraction, name: str) -> FabricPlan:
    """Plan the fabric of `topology`.

    Links with the `full_bandwidth` get the rate `link_mbps` (10^6 bit/s), other links a proportional rate. Raises
    InvalidInput for an invalid name, a rate out of range, or a network that is too large or not strongly connected.
    O(ranks * links).
    """
    if _NAME.fullmatch(name) is None:
        rule = "the name of a fabric must be 1 to 24 letters, digits and dashes in between"
        raise InvalidInput(rule, repr(name), "choose a name such as ring-a")
    if topology.node_count > MAX_NODES:
        rule = f"a fabric must have at most {MAX_NODES} nodes, switches included"
        raise InvalidInput(rule, topology.node_count, "use a smaller network")
    full = full_bandwidth(topology)
    rates: dict[tuple[int, int], Fraction] = {}  # from node to node, summed over parallel links
    for link in topology.links:
        if link.src != link.dst:
            bits_per_s = link_mbps * 10**6 * link.bandwidth / full
            rates[link.src, link.dst] = rates.get((link.src, link.dst), Fraction(0)) + bits_per_s
    for rate in rates.values():
        if not _SLOWEST_BITS_PER_S <= rate <= _FASTEST_BITS_PER_S:
            rule = "every link of a fabric must have between 0.1 and 100000 Mbit/s"
            raise InvalidInput(rule, f"{float(rate / 10**6):g} Mbit/s", "choose another --link-mbps, such as 50")
    pairs = sorted({(min(pair), max(pair)) for pair in rates})
    cables = tuple(Cable(pair, (int(rates.get(pair, 0)), int(rates.get(pair[::-1], 0)))) for pair in pairs)
    return FabricPlan(name, topology.compute_count, cables, next_hops(topology))


def namespace_name(fabric: str, node: int) -> str:
    """Return the name of a node's namespace, which is also its host name."""
    return f"chorale-{fabric}-{node}"


def rank_address(rank: int) -> str:
    """Return the IP address of `rank`. It is the same in every fabric, because fabrics are isolated from each other."""
    return str(_FIRST_ADDRESS + rank)


def device_name(peer: int) -> str:
    """Return the name of a node's device on the cable to its neighbour `peer`."""
    return f"to{peer}"


Stream = tuple[int, int]
"""(Source rank, target rank) of a stream of data."""

Arc = tuple[int, int]
"""(Source node, target node) of a link."""


def arc_rates(plan: FabricPlan) -> dict[Arc, int]:
    """Return the rate of each link in the topology, in bits per second."""
    return {arc: rate for cable in plan.cables for arc, rate in zip(cable.arcs, cable.bits_per_s, strict=True) if rate}


def path_of(plan: FabricPlan, stream: Stream) -> list[Arc]:
    """Return the links that a stream takes, in order."""
    node, target = stream
    path = []
    while node != target:
        path.append((node, plan.routes[node][target]))
        node = plan.routes[node][target]
    return path


CONGESTION_CONTROL = "reno"
WIRE_MTU_BYTES = 9000
HEADER_BYTES = 52
"""Size of the IP and TCP headers, including time stamps, in every data frame."""

_LARGEST_PIECE_BYTES = 65_536
_PIECE_S = Fraction(3, 1000)
_FORWARDED_PIECE_S = Fraction(1, 1000)
_WINDOW_S = Fraction(20, 1000)
_SMALLEST_WINDOW_BYTES = 2**17
_QUEUE_S = 2
_QUEUE_BYTES = (2**21, 2**24)  # room for the first windows of many connections, but bounded


def wire_piece_bytes(bits_per_s: int, at_switch: bool = False) -> int:
    """Return the maximum size in bytes of packets that the kernel passes to an emulated link: a few milliseconds of
    traffic, or less at a switch.

    Large packets need less CPU time, but each hop waits until it has received a complete packet.
    """
    piece_s = _FORWARDED_PIECE_S if at_switch else _PIECE_S
    return min(max(int(bits_per_s * piece_s / 8), WIRE_MTU_BYTES), _LARGEST_PIECE_BYTES)


def wire_queue_bytes(bits_per_s: int) -> int:
    """Return how many bytes an emulated link can queue: two seconds of traffic, but within the range `_QUEUE_BYTES`."""
    smallest, largest = _QUEUE_BYTES
    return min(max(_QUEUE_S * bits_per_s // 8, smallest), largest)


def window_frames(bits_per_s: int) -> int:
    """Return how many frames a connection may have in flight over a path with the rate `bits_per_s`.

    The number is just large enough to keep the path busy while threads wait for a CPU core. With more frames in flight,
    one sender delays the start of others and fills queues.
    """
    return -(-max(int(bits_per_s * _WINDOW_S / 8), _SMALLEST_WINDOW_BYTES) // WIRE_MTU_BYTES)


def carried_bytes(payload_bytes: int) -> int:
    """Return how many bytes a link carries for `payload_bytes`: the payload and the headers of its frames."""
    frames = -(-payload_bytes // (WIRE_MTU_BYTES - HEADER_BYTES))
    return payload_bytes + frames * HEADER_BYTES


_TCP_HEADER_WORDS = range(5, 16)
_WAITING_PACKETS = 4096

# A namespace inherits the machine's congestion control, which may pace packets, so it is set here. Earlier traffic must
# not affect later measurements: routes save no metrics, and windows do not shrink while a connection is idle.
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
    nodes = (f"netns add {namespace_name(plan.name, node)}" for node in range(len(plan.routes)))
    return "\n".join(["set -e", "ip -batch - <<'NAMESPACES'", *nodes, "NAMESPACES", ""])


def nodes_script(plan: FabricPlan) -> str:
    """Return a script for `sh` that configures the namespaces: settings, devices, queues and routes.

    The devices of all cables must already exist.
    """
    lines, outgoing = ["set -e"], [dict[int, int]() for _ in plan.routes]
    for cable in plan.cables:
        (u, v), (forward, back) = cable.nodes, cable.bits_per_s
        outgoing[u][v], outgoing[v][u] = forward, back
    paced = [
        {peer: rate or outgoing[peer][node] for peer, rate in rates.items()} for node, rates in enumerate(outgoing)
    ]
    for node, rates in enumerate(outgoing):
        # The program that forwards packets has its own queues, so the kernel passes packets to the device immediately.
        wires = (f"qdisc add dev {device_name(peer)} root noqueue" for peer in sorted(paced[node]))
        lines += [f"nsenter --net=/run/netns/{namespace_name(plan.name, node)} sh -e <<'NODE'", _SETTINGS]
        lines += ["ip -batch - <<'DEVICES'", *_devices(plan, node, paced[node]), "DEVICES"]
        lines += ["tc -batch - <<'QUEUES'", *wires, *_detours(plan, node, rates), "QUEUES", "NODE"]
    return "\n".join([*lines, ""])


def _devices(plan: FabricPlan, node: int, rates: dict[int, int]) -> Iterator[str]:
    """Yield `ip` batch lines for one node: its devices, then a route to every other rank."""
    yield "link set lo up"
    source = ""
    if node < plan.compute_count:
        source = f" src {rank_address(node)}"
        # The address is on a separate veth pair, because runtimes look for a device that is not the loopback.
        yield f"link add {NODE_DEVICE} mtu {WIRE_MTU_BYTES} type veth peer name {NODE_DEVICE}-peer"
        yield f"address add {rank_address(node)}/32 dev {NODE_DEVICE}"
        yield f"link set {NODE_DEVICE} up"
        yield f"link set {NODE_DEVICE}-peer up"
    for peer, rate in sorted(rates.items()):
        at_switch = max(node, peer) >= plan.compute_count
        shape = f"mtu {WIRE_MTU_BYTES} gso_max_size {wire_piece_bytes(rate, at_switch)} txqueuelen {_WAITING_PACKETS}"
        yield f"link set {device_name(peer)} {shape} arp off up"
    for rank, peer in enumerate(plan.routes[node]):
        if rank != node:
            frames = window_frames(rates[peer])
            windows = f"initcwnd {frames} cwnd lock {frames} initrwnd {frames}"
            yield f"route add {rank_address(rank)}/32 dev {device_name(peer)}{source} {windows}"


def _detours(plan: FabricPlan, node: int, rates: dict[int, int]) -> Iterator[str]:
    """Yield `tc` batch lines that send acknowledgements directly to neighbours to which no link of the topology leads.

    The filters recognize acknowledgements as TCP packets that consist of headers only. Packets with data take the
    routed path over real links, so the reverse direction adds no bandwidth.
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
