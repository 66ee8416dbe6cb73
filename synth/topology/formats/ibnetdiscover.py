"""Reads InfiniBand fabrics from `ibnetdiscover` or `iblinkinfo` output: switches, hosts with adapters, and cables.

Each port's line has its width and speed, such as 4xHDR. Rates are data rates, without line-code overhead.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.check import ABILITY_KEYS, NamedLink, NamedNode, assemble_topology
from chorale.synth.topology.formats.labels import labelled_parts, plain_text
from chorale.synth.topology.formats.machine_network import NO_RANKS, Fabric, Machine, without_dead_ends
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
"""Data rate per lane: 8b/10b code up to QDR, 64b/66b from FDR on; nominal rate from HDR on."""

_HEAD = re.compile(r'^(Switch|Ca|Rt)\s+\d+\s+"([SHR]-[0-9a-fA-F]+)"\s*#\s*"([^"]*)"')
_ANYWHERE = re.compile(_HEAD.pattern[1:])
_PORT = re.compile(
    r'^\[(\d+)\](?:\[[^\]]*\]|\([0-9a-fA-F]+\))*\s+"([SHR]-[0-9a-fA-F]+)"\[(\d+)\]'
    r".*?(\d{1,4}x|\?+)([A-Z]+[0-9]*|\?+)(?: s=\d+ w=\d+ v=\d+)?(?: slot \d+| \(scp\))?\s*$"
)
"""Lines of chassis switches also have external port numbers, and the option --full adds numbers."""
_SIGNALS = dict(zip((2.5, 5, 10, 10.3125, 14.0625, 25.78125, 53.125, 106.25, 212.5), LANE_GBIT_PER_S, strict=True))
"""Gbit/s of a lane with line code, as `iblinkinfo` prints it, and the name of the speed."""
_LINK = re.compile(
    r"(\d+) +(\d+)\[[^]]*\] *==\( *(\d+)X +([\d.]+) Gbps *(?:\((FDR10)\) *)?Active/ *LinkUp\)==>"
    r' *(?:0x[0-9a-f]+ +)?(\d+) +(\d+)\[[^]]*\] *"([^"]*)"'
)
_ADAPTER = re.compile(r"[\s_:/]+(HCA-?\d+|mlx\d+_\w+|ibp?\S*|hfi\d+_\d+|roce\S*|rdma\S*)$", re.IGNORECASE)
_AGGREGATION = re.compile(r"Aggregation Node", re.IGNORECASE)
_NO_RANK = re.compile(
    r"(?<![a-z])(?:ufm|opensm|mgmt|mgt|mngt|management|head|login|gw|gateway|skyway|router|storage|oss|mds|nsd|lustre"
    r"|gpfs|nas|nfs|admin|bastion|bcm|dhcp|monitor\w*)(?:node|server|srv|host)?(?![a-z])",
    re.IGNORECASE,
)


def is_ibnetdiscover(text: str) -> bool:
    if _LINK.search(text) is not None:
        return True
    return _ANYWHERE.search(text) is not None and re.search(_HEAD.pattern, _unlabelled(text), re.MULTILINE) is not None


def _unlabelled(text: str) -> str:
    """Return `text` without log labels at line starts. The log may contain the output of several hosts."""
    return "\n".join(line.strip() for part in labelled_parts(text, _ANYWHERE) for line in part.split("\n"))


@dataclass(frozen=True, slots=True)
class InfiniBand:
    """An InfiniBand fabric. All entries are in file order.

    hosts:    host -> adapter name -> GUID, sorted by adapter name
    switches: GUID -> whether the switch can add (SHARP)
    cables:   (GUID, GUID, Gbit/s)
    left_out: hosts that do not look like ranks, such as gateways and management machines
    """

    hosts: dict[str, dict[str, str]]
    switches: dict[str, bool]
    cables: list[tuple[str, str, Fraction]]
    left_out: dict[str, dict[str, str]]

    def chosen(self, names: Sequence[str], count: int | None = None) -> dict[str, dict[str, str]]:
        """Return the first `count` of the hosts in `names` or, without names, of all hosts that look like ranks."""
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
        """Return the assumptions about the fabric if the ranks are the hosts in `chosen`."""
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

    def fabric(self, machine: Machine, hosts: dict[str, dict[str, str]]) -> Fabric:
        """Return the fabric that connects `hosts`, each of which is a copy of `machine`.

        The machine's NICs are matched to the adapters in the file by name or, if names differ, by order.
        """
        wanted = [nic.name for nic in machine.nics]
        guids: dict[str, tuple[str, int]] = {}
        for host, adapters in hosts.items():
            same = [adapters[name] for name in wanted if name in adapters]
            for index, guid in enumerate(same if len(same) == len(wanted) else list(adapters.values())[: len(wanted)]):
                guids[guid] = (host, index)
        links = self._links({guid: guid for guid in guids})
        leaves: dict[tuple[str, int], tuple[str, Fraction | None]] = {}
        for src, dst, rate in links:
            for here, there in ((src, dst), (dst, src)):
                if here in guids:
                    leaves[guids[here]] = (there, rate / 8)
        between = [
            NamedLink(src, dst, rate / 8, bidirectional=True)
            for src, dst, rate in links
            if src not in guids and dst not in guids
        ]
        return Fabric(leaves, self._switch_nodes(links), between, tuple(self.facts(hosts)))

    def _links(self, host_of: dict[str, str]) -> list[tuple[str, str, Fraction]]:
        """Return the cables between switches and chosen adapters as (node, node, Gbit/s), without dead-end switches."""
        named = [
            (host_of.get(src, _switch_id(src)), host_of.get(dst, _switch_id(dst)), rate)
            for src, dst, rate in self.cables
            if all(end in host_of or end in self.switches for end in (src, dst)) and src != dst
        ]
        return [link for link in without_dead_ends(named, set(host_of.values())) if link[0] != link[1]]

    def _switch_nodes(self, links: Sequence[tuple[str, str, Fraction]]) -> list[NamedNode]:
        used = {end for link in links for end in link[:2]}
        able = dict.fromkeys(ABILITY_KEYS[:2], True)
        names = [(_switch_id(guid), adds) for guid, adds in self.switches.items()]
        return [NamedNode(name, "switch", able if adds else {}) for name, adds in names if name in used]


_Names = dict[str, tuple[str, str]]
"""Kind and description of each device, by GUID."""
_Cables = dict[frozenset[tuple[str, str]], Fraction]
"""Gbit/s of each cable, by its two ends (GUID, port)."""


def _discovered(text: str) -> tuple[_Names, _Cables]:
    """Return the devices and cables in ibnetdiscover output."""
    names: _Names = {}
    cables: _Cables = {}
    here = ""
    for line in _unlabelled(text).splitlines():
        if (head := _HEAD.match(line.strip())) is not None:
            here = head[2]
            names[here] = (head[1], head[3])
        elif (port := _PORT.match(line.strip())) is not None and here:
            lane = _lane(port[5] if port[4].endswith("x") else "?", line)
            ends, rate = frozenset(((here, port[1]), (port[2], port[3]))), int(port[4][:-1]) * lane
            cables[ends] = min(rate, cables.get(ends, rate))  # both ends state a rate; the slower one counts
    return names, cables


def _linked(text: str) -> tuple[_Names, _Cables]:
    """Return the devices and cables in iblinkinfo output, with LIDs instead of GUIDs.

    Every link is printed at both ends. Only a switch has several ports with the same LID.
    """
    names: dict[str, str] = {}
    ports: dict[str, set[str]] = {}
    cables: dict[tuple[str, str, str, str], Fraction] = {}
    for line in plain_text(text).splitlines():
        if (link := _LINK.search(line)) is not None:
            lid, port, width, signal, is_fdr10, far, far_port, names[far] = link.groups()
            nearest = min(_SIGNALS, key=lambda known: abs(known - float(signal)))
            speed = is_fdr10 or (_SIGNALS[nearest] if abs(nearest - float(signal)) < nearest / 50 else signal)
            cables[lid, port, far, far_port] = int(width) * _lane(speed, line)
            ports.setdefault(lid, set()).add(port)
            ports.setdefault(far, set()).add(far_port)
        elif "Active/" in line and "==(" in line:
            _lane("?", line)
    of = {lid: f"{'S' if len(ports[lid]) > 1 else 'H'}-{lid}" for lid in ports}
    kinds = {of[lid]: ("Switch" if len(ports[lid]) > 1 else "Ca", names.get(lid, "")) for lid in ports}
    return kinds, {frozenset(((of[a], port), (of[b], other))): rate for (a, port, b, other), rate in cables.items()}


def _lane(speed: str, line: str) -> Fraction:
    """Return the rate of one lane in Gbit/s. For an unknown `speed`, raises InvalidInput, which quotes `line`."""
    if speed not in LANE_GBIT_PER_S:
        value, known = f"{speed} in {line.strip()!r}", ", ".join(LANE_GBIT_PER_S)
        raise InvalidInput("unknown speed of an InfiniBand link: {}", value, f"known are {known}")
    return LANE_GBIT_PER_S[speed]


def read_fabric(text: str) -> InfiniBand:
    """Return the fabric described by ibnetdiscover or iblinkinfo output.

    Adapters whose descriptions name the same host, such as `node7 HCA-1` and `node7 HCA-2`, belong to one host.
    Aggregation nodes are treated as part of their switch; routers and gateways are omitted. Raises InvalidInput for
    unknown speeds.
    """
    names, cables = _linked(text) if _LINK.search(text) else _discovered(text)
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


def _natural(item: tuple[str, str]) -> list[tuple[int, str]]:
    return [(int(digits or 0), word) for word, digits in re.findall(r"(\D*)(\d*)", item[0])]


def _switch_id(guid: str) -> str:
    return guid.replace("-", "_")
