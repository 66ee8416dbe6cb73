"""Networks from what tools print: `nvidia-smi topo -m`, `rocm-smi --showtopo` (one machine) and `ibnetdiscover`.

The first two say how pairs of GPUs are joined, and no rates: those are the published ones of the links. NVLink: 25 GB/s
a link and direction (generations 2 to 4; 50 from Blackwell on), xGMI: 64 GB/s between two MI300X, PCI Express: 32 GB/s,
that of 16 lanes of generation 4. A calibration replaces them. For ibnetdiscover, switches are switches, and hosts with
their adapters are ranks; a port's line ends with its width and speed, such as 4xHDR; rates are those of data, after the
line code.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction

import numpy as np

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.automorphism import connected_labels
from chorale.synth.topology.check import NamedLink, NamedNode, assemble_topology
from chorale.synth.topology.topology import Topology

NVLINK_GB_PER_S, NVLINK_5_GB_PER_S = Fraction(25), Fraction(50)
XGMI_GB_PER_S = Fraction(64)
PCI_GB_PER_S = Fraction(32)
MOST_NVLINKS = 18
"""Of a GPU. Where all pairs show so many that a GPU would need more, there is an NVSwitch, and each pair shows all."""

_AMD_TABLE = "Link Type between two GPUs"
_GPU = re.compile(r"GPU[0-9]+")
_NVLINKS = re.compile(r"NV([0-9]{1,2})")
_ACROSS_CPUS = "SYS"
Pairs = Mapping[tuple[int, int], str]


def is_gpu_matrix(text: str) -> bool:
    """Return whether `text` is a matrix of one of the two tools."""
    return _AMD_TABLE in text or re.search(r"^\s*(?:\S+\s+)?GPU0\s.*\bX\b", text, re.MULTILINE) is not None


def from_gpu_matrix(text: str, spec: str, model: str = "") -> Topology:
    """Return the network of the GPUs in `text`, in GB/s; `model` is their name, where it is known.

    NVLinks that join all pairs alike, more than a GPU has for each, are one NVSwitch; others are links of the pairs.
    GPUs that reach each other over PCI Express alone hang on a switch for each group that does not cross CPUs.
    Raises InvalidInput for a text without a complete matrix.
    """
    is_amd = _AMD_TABLE in text
    count, pairs = _matrix(text.split(_AMD_TABLE, 1)[1] if is_amd else text)
    if is_amd:
        links = _amd_links(count, pairs)
    else:
        newest = any(name in model.upper() for name in ("B100", "B200", "B300", "GB20", "GB30"))
        links = _nvidia_links(count, pairs, NVLINK_5_GB_PER_S if newest else NVLINK_GB_PER_S)
    names = dict.fromkeys(name for link in links for name in (link.src, link.dst) if not _GPU.fullmatch(name))
    nodes = [NamedNode(f"GPU{gpu}", "compute") for gpu in range(count)]
    return assemble_topology(spec, "GB/s", [*nodes, *(NamedNode(name, "switch") for name in names)], links)


def _matrix(text: str) -> tuple[int, Pairs]:
    """Return how many GPUs there are, and what joins each pair of them."""
    lines = [line.split() for line in text.splitlines()]
    header = next((words for words in lines if words[:1] == ["GPU0"] and words[1:2] in (["GPU1"], [])), None)
    header = header or next((words for words in lines if words[:2] == ["GPU0", "GPU1"]), None)
    if header is None:
        raise _incomplete("no line with the names of GPUs")
    gpus = [name for name in header if _GPU.fullmatch(name)]
    rows = {words[0]: words[1:] for words in lines if words and words[0] in gpus and words is not header}
    pairs: dict[tuple[int, int], str] = {}
    for index, name in enumerate(gpus):
        cells = rows.get(name, [])[: len(gpus)]
        if len(cells) < len(gpus) or cells[index] not in ("X", "0"):
            raise _incomplete(f"no complete row of {name}")
        pairs |= {(index, other): cell for other, cell in enumerate(cells) if other != index}
    odd = [pair for pair in pairs if pairs[pair] != pairs[pair[::-1]]]
    if odd or len(gpus) < 2:
        raise _incomplete(f"GPU{odd[0][0]} and GPU{odd[0][1]} differ" if odd else "a single GPU")
    return len(gpus), pairs


def _nvidia_links(count: int, pairs: Pairs, each: Fraction) -> list[NamedLink]:
    lanes = {pair: int(found[1]) for pair, kind in pairs.items() if (found := _NVLINKS.fullmatch(kind))}
    alike = set(lanes.values())
    if len(lanes) == len(pairs) and len(alike) == 1 and (number := alike.pop()) * (count - 1) > MOST_NVLINKS:
        return [_both(f"GPU{gpu}", "nvswitch", number * each) for gpu in range(count)]
    direct = [_both(f"GPU{a}", f"GPU{b}", number * each) for (a, b), number in lanes.items() if a < b]
    joined = {gpu for pair in lanes for gpu in pair}
    return direct if len(joined) == count and _connected(count, lanes) else [*direct, *_pci_links(count, pairs)]


def _amd_links(count: int, pairs: Pairs) -> list[NamedLink]:
    wired = {pair: kind for pair, kind in pairs.items() if kind == "XGMI"}
    direct = [_both(f"GPU{a}", f"GPU{b}", XGMI_GB_PER_S) for a, b in wired if a < b]
    return direct if _connected(count, wired) else [*direct, *_pci_links(count, pairs)]


def _pci_links(count: int, pairs: Pairs) -> list[NamedLink]:
    """Return a switch for each group of GPUs that reach each other without crossing CPUs, and a link between two."""
    group = list(range(count))
    for (a, b), kind in pairs.items():
        if kind not in (_ACROSS_CPUS, "PCIE") and group[a] != group[b]:
            low, high = sorted((group[a], group[b]))
            group = [low if item == high else item for item in group]
    if all(kind == "PCIE" for kind in pairs.values()):
        group = [0] * count
    roots = sorted(set(group))
    links = [_both(f"GPU{gpu}", f"cpu{roots.index(root)}", PCI_GB_PER_S) for gpu, root in enumerate(group)]
    between = ((a, b) for a in range(len(roots)) for b in range(a))
    return [*links, *(_both(f"cpu{a}", f"cpu{b}", PCI_GB_PER_S) for a, b in between)]


def _connected(count: int, pairs: Mapping[tuple[int, int], object]) -> bool:
    ends = np.array(list(pairs), dtype=np.int64).reshape(-1, 2)
    return not connected_labels(count, ends[:, 0], ends[:, 1]).any()


def _both(src: str, dst: str, bandwidth: Fraction) -> NamedLink:
    return NamedLink(src, dst, bandwidth, bidirectional=True)


def _incomplete(found: str) -> InvalidInput:
    rule = "a matrix of GPUs must have a row and a column for each of two GPUs or more"
    return InvalidInput(rule, found, "save all that `nvidia-smi topo -m` or `rocm-smi --showtopo` prints")


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
"""Data rate of a lane: 8b/10b coded up to QDR, 64b/66b from FDR on; from HDR on the nominal one."""

_HEAD = re.compile(r'^(Switch|Ca|Rt)\s+\d+\s+"([SHR]-[0-9a-f]+)"\s*#\s*"([^"]*)"')
_PORT = re.compile(r'^\[(\d+)\](?:\([0-9a-f]+\))?\s+"([SHR]-[0-9a-f]+)"\[(\d+)\].*?(\d+)x([A-Z]+[0-9]*)\s*$')
_ADAPTER = re.compile(r"[\s_:]+(?:HCA-?\d+|mlx\d+_\d+|ibp?\S*|hfi\d+_\d+)$", re.IGNORECASE)


def is_ibnetdiscover(text: str) -> bool:
    """Return whether `text` is an output of ibnetdiscover."""
    return re.search(_HEAD.pattern, text, re.MULTILINE) is not None


def from_ibnetdiscover(text: str, spec: str) -> Topology:
    """Return the network in Gbit/s; ranks are the hosts in the order of their first line.

    Adapters whose descriptions name the same host, such as `node7 HCA-1` and `node7 HCA-2`, are one rank. Raises
    InvalidInput for a text without hosts, or for speeds that are not known.
    """
    names: dict[str, tuple[str, str]] = {}
    cables: dict[frozenset[tuple[str, str]], Fraction] = {}
    here = ""
    for line in text.splitlines():
        if (head := _HEAD.match(line.strip())) is not None:
            here = head[2]
            names[here] = (head[1], head[3])
        elif (port := _PORT.match(line.strip())) is not None and here:
            ends, rate = frozenset(((here, port[1]), (port[2], port[3]))), _rate(port[4], port[5], line)
            cables[ends] = min(rate, cables.get(ends, rate))  # each end tells it; the slower one counts
    ids = _node_ids(names)
    links = []
    for ends, rate in cables.items():
        nodes = [ids[guid] for guid, _ in sorted(ends) if guid in ids]
        if len(nodes) == 2 and nodes[0] != nodes[1]:
            links.append(NamedLink(nodes[0], nodes[1], rate, bidirectional=True))
    used = {name for link in links for name in (link.src, link.dst)}
    kinds = {ids[guid]: "switch" if kind != "Ca" else "compute" for guid, (kind, _) in names.items()}
    nodes_of_file = [NamedNode(name, kind) for name, kind in kinds.items() if name in used]
    if sum(node.kind == "compute" for node in nodes_of_file) < 2:
        rule, way_out = "an output of ibnetdiscover must have two hosts or more", "save all that it prints"
        raise InvalidInput(rule, f"{len(nodes_of_file)} nodes with links", way_out)
    return assemble_topology(spec, "Gbit/s", nodes_of_file, links)


def _node_ids(names: dict[str, tuple[str, str]]) -> dict[str, str]:
    """Return the id of each node by its GUID: of adapters their host, where descriptions tell hosts apart."""
    hosts: dict[str, str] = {}
    for guid, (kind, description) in names.items():
        host = _ADAPTER.sub("", description.strip())
        is_named = kind == "Ca" and host != description.strip() and host
        hosts[guid] = re.sub(r"[^A-Za-z0-9_.:]", "_", host) if is_named else guid.replace("-", "_")
    return hosts


def _rate(width: str, speed: str, line: str) -> Fraction:
    if speed not in LANE_GBIT_PER_S:
        known = ", ".join(LANE_GBIT_PER_S)
        rule = "the speed of an InfiniBand link must be known"
        raise InvalidInput(rule, f"{speed} in {line.strip()!r}", f"known are {known}")
    return int(width) * LANE_GBIT_PER_S[speed]
