"""Networks of one machine from the matrices that `nvidia-smi topo -m` and `rocm-smi --showtopo` print.

Both say how pairs of GPUs are joined, and no rates: those are the published ones of the links. NVLink: 25 GB/s a link
and direction (generations 2 to 4; 50 from Blackwell on), xGMI: 64 GB/s between two MI300X, PCI Express: 32 GB/s, that
of 16 lanes of generation 4. A calibration replaces them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction

import numpy as np

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.check import NamedLink, NamedNode, assemble_topology
from chorale.synth.topology.components import connected_labels
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
