"""Reads InfiniBand fabrics from `ibnetdiscover` output: switches, hosts with adapters, and cables.

The line of each port states its width and speed, such as 4xHDR. Rates are data rates, without line-code overhead.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.check import ABILITY_KEYS, NamedLink, NamedNode, assemble_topology
from chorale.synth.topology.formats.json_document import ability_members
from chorale.synth.topology.formats.labels import labelled_parts
from chorale.synth.topology.formats.machine_network import FABRIC_FACT, BoxNetwork, Machine, boxes_topology
from chorale.synth.topology.topology import Assumption, Topology

LANE_GBIT_PER_S = {
    "SDR": Fraction(2),
    "DDR": Fraction(4),
    "QDR": Fraction(8),
    "FDR10": Fraction(10),
    "FDR": Fraction(150, 11),
    "EDR": Fraction(25),
    "HDR": Fraction(50),
    "NDR": Fraction(100),
    "XDR": Fraction(200),
}
"""Data rate per lane: after 8b/10b coding up to QDR, after 64b/66b coding for FDR10 to EDR, nominal from HDR on."""

_HEAD = re.compile(r'^(Switch|Ca|Rt)\s+\d+\s+"([SHR]-[0-9a-fA-F]+)"\s*#\s*"([^"]*)"')
_ANYWHERE = re.compile(_HEAD.pattern[1:])
_PORT = re.compile(
    r'^\[(\d+)\](?:\[[^\]]*\]|\([0-9a-fA-F]+\))*\s+"([SHR]-[0-9a-fA-F]+)"\[(\d+)\]'
    r".*?(\d{1,4}x|\?+)([A-Z]+[0-9]*|\?+)(?: s=\d+ w=\d+ v=\d+)?(?: slot \d+| \(scp\))?\s*$"
)
"""Pattern for the line of a port. Lines of chassis switches also contain external port numbers; the option --full adds
further numbers."""
_ADAPTER = re.compile(r"[\s_:/]+(HCA-?\d+|mlx\d+_\w+|ibp?\S*|hfi\d+_\d+|roce\S*|rdma\S*)$", re.IGNORECASE)
NO_RANKS = "no ranks"
_NUMBERED = re.compile(r"((?:[a-z]+:)?)([0-9]+)(.*)")
_NET = re.compile(r"net:([0-9]+)")
_AGGREGATION = re.compile(r"Aggregation Node", re.IGNORECASE)
_NO_RANK = re.compile(
    r"(?<![a-z])(?:ufm|opensm|mgmt|mgt|mngt|management|head|login|gw|gateway|skyway|router|storage|oss|mds|nsd|lustre"
    r"|gpfs|nas|nfs|admin|bastion|bcm|dhcp|monitor\w*)(?:node|server|srv|host)?(?![a-z])",
    re.IGNORECASE,
)
_MAX_HOSTS = 2**20
_NAME, _RANGE = "[A-Za-z0-9_.-]{0,255}", r"[0-9]{1,9}(?:-[0-9]{1,9})?"
_HOSTS = re.compile(rf"({_NAME})(?:\[({_RANGE}(?:,{_RANGE})*)\])?({_NAME})(?:,|\Z)")


def is_ibnetdiscover(text: str) -> bool:
    return _ANYWHERE.search(text) is not None and re.search(_HEAD.pattern, _unlabelled(text), re.MULTILINE) is not None


def _unlabelled(text: str) -> str:
    """Remove labels that a log puts before each line. The log may contain the output of several hosts."""
    return "\n".join(line.strip() for part in labelled_parts(text, _ANYWHERE) for line in part.split("\n"))


@dataclass(frozen=True, slots=True)
class InfiniBand:
    """An InfiniBand fabric. Hosts, switches and cables are in file order.

    hosts:    maps each host to the GUIDs of its adapters, keyed by adapter name and sorted by these names
    switches: maps the GUID of each switch to whether the switch can reduce data (SHARP)
    cables:   (GUID at one end, GUID at the other end, rate in Gbit/s) of each cable
    left_out: in the same form as `hosts`, hosts that do not look like ranks, such as gateways and management machines
    """

    hosts: dict[str, dict[str, str]]
    switches: dict[str, bool]
    cables: list[tuple[str, str, Fraction]]
    left_out: dict[str, dict[str, str]]

    def chosen(self, names: Sequence[str], count: int | None = None) -> dict[str, dict[str, str]]:
        """Return the hosts in `names` (if empty: those that look like ranks), at most the first `count` of them."""
        everything = self.hosts | self.left_out
        unknown = [name for name in names if name not in everything]
        if unknown:
            known = ", ".join([*everything][:8])
            raise InvalidInput("--nodes must name hosts of the fabric", unknown[0], f"hosts are {known}")
        hosts = {name: everything[name] for name in names} if names else self.hosts
        if count is not None and count > len(hosts):
            rule = f"--boxes asks for {count} hosts, the fabric has {{}}"
            raise InvalidInput(rule, f"{len(hosts)} hosts", "use fewer")
        return dict([*hosts.items()][:count])

    def facts(self, chosen: dict[str, dict[str, str]]) -> list[Assumption]:
        """Return the assumptions behind a network in which the hosts in `chosen` are the ranks."""
        facts = [Assumption("rates of InfiniBand ports", "width times speed of both ends", "file", "such as 4xHDR")]
        adders = [name for name, adds in self.switches.items() if adds]
        if adders:
            value = f"{len(adders)} of {len(self.switches)} switches"
            facts.append(Assumption("switches that add (SHARP)", value, "file", "aggregation nodes at these switches"))
        missing = [name for name in self.left_out if name not in chosen]
        if missing:
            advice = "by their names; choose hosts with --nodes"
            facts.append(Assumption(NO_RANKS, ", ".join(missing)[:150], "guess", advice))
        return facts

    def topology(self, spec: str, names: Sequence[str] = (), count: int | None = None) -> Topology:
        """Return the network in which each chosen host is a rank, with bandwidths in Gbit/s."""
        hosts = self.chosen(names, count)
        host_of = {guid: host for host, adapters in hosts.items() for guid in adapters.values()}
        links = self._links(host_of)
        nodes = [NamedNode(host, "compute") for host in hosts if any(host in link[:2] for link in links)]
        if len(nodes) < 2:
            rule, way_out = "this output of ibnetdiscover has fewer than two hosts: {}", "save all that it prints"
            raise InvalidInput(rule, f"{len(nodes)} with links", way_out)
        doubtful = bool(self.left_out) and not names  # every bound depends on which hosts are ranks
        named = [NamedLink(src, dst, rate, bidirectional=True, guess=doubtful) for src, dst, rate in links]
        return assemble_topology(spec, "Gbit/s", [*nodes, *self._switch_nodes(links)], named, self.facts(hosts))

    def cluster(self, machine: Machine, hosts: dict[str, dict[str, str]], nic: Fraction | None, spec: str) -> Topology:
        """Return the network of the GPUs in all `hosts`, which are copies of `machine`, joined by this fabric.

        Node ids are as in `boxes_topology`, but with host names instead of box numbers: GPU `n1.0`, NIC `nic:n1.0`.
        The machine's NICs are matched to the adapters in the file by name or, if names differ, by order.
        nic: bandwidth of every NIC in GB/s; None means the rates that `machine` states
        """
        wanted = [each.name for each in machine.nics]
        place: dict[str, tuple[str, int]] = {}  # host and number of the NIC, by the adapter's GUID
        for host, adapters in hosts.items():
            same = [adapters[name] for name in wanted if name in adapters]
            for index, guid in enumerate(same if len(same) == len(wanted) else list(adapters.values())[: len(wanted)]):
                place[guid] = host, index
        cables = self._links({guid: guid for guid in place})
        leaves: dict[tuple[str, int], tuple[str, Fraction]] = {}  # switch and GB/s of each connected NIC
        for src, dst, rate in cables:
            for guid, switch in ((src, dst), (dst, src)):
                if guid in place:
                    leaves[place[guid]] = (switch, rate / 8)
        facts = self.facts(hosts)
        doubtful = any(fact.what == NO_RANKS for fact in facts)  # every bound depends on which hosts are ranks
        boxes = boxes_topology(machine, BoxNetwork(len(hosts), nic, rails=True), spec)
        guessed = frozenset[tuple[str, str]]() if boxes.provenance is None else boxes.provenance.guessed
        expected, of_box, names = boxes.expected or boxes, list(hosts), []
        for name in boxes.node_ids:
            match = None if _NET.fullmatch(name) else _NUMBERED.fullmatch(name)
            names.append(name if match is None else f"{match[1]}{of_box[int(match[2])]}{match[3]}")
        links: list[NamedLink] = []
        for link, slower in zip(boxes.links, expected.links, strict=True):
            ends, most = [names[link.src], names[link.dst]], None
            for end, (here, there) in enumerate(((link.src, link.dst), (link.dst, link.src))):
                if (net := _NET.fullmatch(boxes.node_ids[here])) is not None:
                    numbered = _NUMBERED.fullmatch(boxes.node_ids[there])
                    assert numbered is not None  # box ids contain numbers
                    ends[end], most = leaves.get((of_box[int(numbered[2])], int(net[1])), ("", None))
            if all(ends):
                width = link.bandwidth if most is None else min(most, link.bandwidth)
                derated = slower.bandwidth if most is None else min(most, slower.bandwidth)
                is_guess = (boxes.node_ids[link.src], boxes.node_ids[link.dst]) in guessed and width != most
                links.append(
                    NamedLink(ends[0], ends[1], width, link.latency_s, expected=derated, guess=doubtful or is_guess)
                )
        if any(map(_NET.fullmatch, boxes.node_ids)):
            links += [
                NamedLink(src, dst, rate / 8, bidirectional=True, guess=doubtful)
                for src, dst, rate in cables
                if src not in place and dst not in place
            ]
        nodes = [
            NamedNode(names[index], boxes.node_kind(index), ability_members(boxes, index))
            for index, name in enumerate(boxes.node_ids)
            if not _NET.fullmatch(name)
        ]
        used = {end for link in links for end in link[:2]}
        kept = [node for node in (*nodes, *self._switch_nodes(cables)) if node.id in used or node.kind == "compute"]
        of_boxes = (fact for fact in boxes.assumptions if fact.what != FABRIC_FACT)
        return assemble_topology(spec, boxes.bandwidth_unit, kept, links, (*of_boxes, *facts))

    def _links(self, host_of: dict[str, str]) -> list[tuple[str, str, Fraction]]:
        """Return (node, node, Gbit/s) for each cable whose two ends are switches or chosen adapters.

        `host_of` maps the GUID of each chosen adapter to its node. Switches that end up with one neighbour are removed.
        """
        links = [
            (host_of.get(src, _switch_id(src)), host_of.get(dst, _switch_id(dst)), rate)
            for src, dst, rate in self.cables
            if all(end in host_of or end in self.switches for end in (src, dst)) and src != dst
        ]
        before, ranks = len(links) + 1, set(host_of.values())
        while len(links) < before:
            before, neighbours = len(links), defaultdict[str, set[str]](set)
            for one, other, _ in links:
                neighbours[one].add(other)
                neighbours[other].add(one)
            links = [link for link in links if all(end in ranks or len(neighbours[end]) > 1 for end in link[:2])]
        return [link for link in links if link[0] != link[1]]

    def _switch_nodes(self, links: Sequence[tuple[str, str, Fraction]]) -> list[NamedNode]:
        used = {end for link in links for end in link[:2]}
        able = dict.fromkeys(ABILITY_KEYS[:2], True)
        names = [(_switch_id(guid), adds) for guid, adds in self.switches.items()]
        return [NamedNode(name, "switch", able if adds else {}) for name, adds in names if name in used]


def read_fabric(text: str) -> InfiniBand:
    """Return the fabric described by ibnetdiscover output.

    Adapters whose descriptions name the same host, such as `node7 HCA-1` and `node7 HCA-2`, belong to one host.
    Aggregation nodes are treated as part of their switch; routers and gateways are omitted. Raises InvalidInput for
    unknown speeds.
    """
    names: dict[str, tuple[str, str]] = {}  # kind and description of each device, by GUID
    cables: dict[frozenset[tuple[str, str]], Fraction] = {}  # Gbit/s of each cable, by its two ends (GUID, port)
    here = ""
    for line in _unlabelled(text).splitlines():
        if (head := _HEAD.match(line)) is not None:
            here = head[2]
            names[here] = (head[1], head[3])
        elif (port := _PORT.match(line)) is not None and here:
            if port[5] not in LANE_GBIT_PER_S or not port[4].endswith("x"):
                value, known = f"{port[5]} in {line!r}", ", ".join(LANE_GBIT_PER_S)
                raise InvalidInput("unknown speed of an InfiniBand link: {}", value, f"known are {known}")
            ends, rate = frozenset(((here, port[1]), (port[2], port[3]))), int(port[4][:-1]) * LANE_GBIT_PER_S[port[5]]
            cables[ends] = min(rate, cables.get(ends, rate))  # both ends state a rate; the slower one counts
    if missing := sorted({guid for ends in cables for guid, _ in ends} - set(names)):
        value = f"none of {missing[0]}" + (f" and of {len(missing) - 1} others" if len(missing) > 1 else "")
        rule = "an output of ibnetdiscover must have a section for each device that a cable leads to"
        raise InvalidInput(rule, value, "save all that it prints")
    ordered_ends = [(sorted(guid for guid, _ in ends), rate) for ends, rate in cables.items() if len(ends) == 2]
    pairs = [(ends[0], ends[1], rate) for ends, rate in ordered_ends]
    adders = {guid for guid, (kind, description) in names.items() if kind == "Ca" and _AGGREGATION.search(description)}
    adding = {end for src, dst, _ in pairs for end in (src, dst) if adders & {src, dst}}
    hosts: dict[str, dict[str, str]] = {}
    left_out: dict[str, dict[str, str]] = {}
    for guid, (kind, description) in names.items():
        if kind != "Ca" or guid in adders:
            continue
        match = _ADAPTER.search(description.strip())
        host, adapter = guid.replace("-", "_"), guid
        if match is not None and match.start():
            host, adapter = re.sub(r"[^A-Za-z0-9_.:]", "_", description.strip()[: match.start()]), match[1]
        group = left_out if _NO_RANK.search(host) else hosts
        if adapter in group.get(host, {}):  # another machine with that name, such as localhost
            host = guid.replace("-", "_")
        group.setdefault(host, {})[adapter] = guid
    switches = {guid: guid in adding for guid, (kind, _) in names.items() if kind == "Switch"}
    ordered = {host: dict(sorted(adapters.items(), key=_natural)) for host, adapters in hosts.items()}
    if not ordered:
        ordered, left_out = left_out, {}
    return InfiniBand(ordered, switches, pairs, left_out)


def expanded_names(text: str) -> list[str]:
    """Return the names in a list such as `gpu[01-03,7],login`. Raises InvalidInput for malformed or huge lists."""
    names: list[str] = []
    position = 0
    while position < len(text):
        match = _HOSTS.match(text, position)
        if match is None:
            raise InvalidInput("cannot read the host list '{}'", text[:80], "write, for example, gpu[01-16],login")
        for part in (match[2] or "").split(","):
            first, _, last = part.partition("-")
            numbers = range(int(first), int(last or first) + 1) if first else ("",)
            if len(names) + len(numbers) > _MAX_HOSTS:
                raise InvalidInput(f"a list must have at most {_MAX_HOSTS} names", text[:80], "name fewer hosts")
            names += [f"{match[1]}{str(number).zfill(len(first))}{match[3]}" for number in numbers]
        position = match.end()
    return [name for name in names if name]


def _natural(item: tuple[str, str]) -> list[tuple[int, str]]:
    return [(int(digits or 0), word) for word, digits in re.findall(r"(\D*)(\d*)", item[0])]


def _switch_id(guid: str) -> str:
    return guid.replace("-", "_")
