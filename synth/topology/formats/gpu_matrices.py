"""Reads machines from the matrices that `nvidia-smi topo -m`, `rocm-smi --showtopo` and `amd-smi topology` print.

A matrix shows how pairs of GPUs are connected, but no rates. NVLinks and PCI Express slots get the published rates of
the GPU model, which the text or an option names. A matrix may be part of a longer text, such as a bug report.
"""

import csv
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.families.fabrics import MI250_LINKS
from chorale.synth.topology.formats.labels import labelled_parts
from chorale.synth.topology.formats.machine_network import Gpu, HostSwitch, Machine, Nic, Wire, rack_gpus, shared_gpus
from chorale.synth.topology.formats.rates import (
    GpuModel,
    Rate,
    cpu_rate,
    is_module,
    model_called,
    models_named,
    nvlink_rate,
    pci_rate_of,
    xgmi_rate,
)
from chorale.synth.topology.topology import Assumption

Pair = tuple[int, int]
Cells = Mapping[Pair, str]

MOST_NVLINKS = 18
"""Maximum number of NVLinks of a GPU. If the cells of a row add up to more, the GPUs share an NVSwitch, and each cell
shows the total NVLinks of a GPU."""

_ASK_MODEL = "name the GPUs with --model, such as --model H100 or --model MI300X"
_HEADER = re.compile(r"(?:GPU0|\d{4}:[0-9a-f]{2}:[0-9a-f]{2}\.\d)(?=[\s|]+(?:GPU1|NIC0|CPU|mlx|\d{4}:))")
"""Pattern for the start of a matrix header. In a log, rows start with the same label as the header."""
_DEVICE = r"(?:GPU\d+|[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9a-fA-F])"
_ROW = re.compile(
    rf"(?:^|[\s|>])({_DEVICE}|NIC\d+|mlx\w+|bnxt\w+|ib\w*\d|rdma\w+|irdma\w*|efa\w*|roce\w+)[\s|]+(\S.*)$"
)
_NVIDIA_CELL = re.compile(r"X|NV\d{1,2}|PIX|PXB|PHB|NODE|SYS|SOC|N/A")
_ONLY_PCI = re.compile(r"\btopo\s+-mp\b")
_NAME = re.compile(r"(?:GPU|NIC)\d+|[a-z]\w*\d\w*")
_PERMISSIONS = {"OK", "NS", "CNS", "GNS", "TNS", "DR", "U"}
_NEAR = ("PIX", "PXB")
_ON_ONE_CPU = (*_NEAR, "PHB", "NODE")
_TABLES = (
    ("weight", re.compile(r"\bweight\b", re.IGNORECASE)),
    ("hops", re.compile(r"\bhops\b", re.IGNORECASE)),
    ("type", re.compile(r"\blink type\b", re.IGNORECASE)),
    ("bandwidth", re.compile(r"numa bw|=\s*bandwidth\s*=|bandwidth between", re.IGNORECASE)),
    ("other", re.compile(r"\b(?:access|coher\w+|atomics|dma|bi-directional|numa nodes?)\b.*(?:table|=)", re.I)),
)  # fmt: skip
_AMD_PAIR = re.compile(r"\(Topology\) (Weight|Hops|Link type) between DRM devices (\d+) and (\d+)", re.IGNORECASE)
_AMD_CSV = re.compile(r"^(?:[\w ]+,)*link_type_gpu_\d+.*$", re.MULTILINE)
_MOST_XGMI = 8
_AMD_MODEL = "name the model of these GPUs, such as MI300X"
_PARTITIONS = "if these are partitions of GPUs, save all that `rocm-smi --showtopo` prints, with its weights"
_ONE_DEVICE_WEIGHT = 13
"""The amdgpu driver's weight between partitions of one GPU (modes CPX, DPX, QPX); one xGMI link has weight 15."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """A printed matrix of connections: names of GPUs and NICs, a cell per pair, and each row's text after the cells."""

    devices: tuple[str, ...]
    cells: Cells
    rest: Mapping[int, str]

    def gpus(self) -> list[int]:
        return [index for index, name in enumerate(self.devices) if re.fullmatch(_DEVICE, name)]


def is_gpu_matrix(text: str) -> bool:
    """Return whether `text` contains a matrix of nvidia-smi, rocm-smi or amd-smi."""
    return _is_amd(text) or any(True for part in labelled_parts(text, _HEADER) for _ in _nvidia_matrices(part))


def read_gpu_matrix(text: str, model: str | None = None) -> Machine:
    """Return the machine that `text` describes. Without `model`, the GPU model is the one named in `text`, if any.

    Raises InvalidInput if `text` has no complete matrix, or only one that does not show how the GPUs are connected.
    """
    chosen = None if model is None else model_called(model)
    read = _amd_machine if _is_amd(text) else _nvidia_machine
    named = "" if model is None else f"\nGPU {model}\n"
    machines = [read(part.replace("`", "") + named, chosen) for part in labelled_parts(text, _HEADER)]
    if any(machine != machines[0] for machine in machines):
        raise _several(f"{len(machines)} hosts that differ")
    return machines[0]


def _several(found: str) -> InvalidInput:
    rule = "the text describes several kinds of machines: {}"
    return InvalidInput(rule, found, "save each in a separate file; --boxes N joins N equal ones")


def _nvidia_matrices(text: str) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    """Yield (device names, lines below the header) for every matrix header in `text`."""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        words = re.sub(r"((?:GPU|NIC)\d+)CPU", r"\1 CPU", line).replace("|", " ").lstrip("> \t#").split()
        words = words[words.index("GPU0") :] if "GPU0" in words else []  # log lines start with a timestamp or a host
        names = words[: words.index("CPU")] if "CPU" in words else words
        if names and all(map(_NAME.fullmatch, names)) and not any(map(_NVIDIA_CELL.fullmatch, names)):
            yield tuple(names), lines[number + 1 :]


def _off(cells: Cells) -> list[Pair]:
    return [(a, b) for a, b in cells if a != b]


def _joined(matrix: Matrix) -> dict[Pair, str]:
    """Return the matrix cell of each pair of GPUs, such as "NV4" or "SYS"."""
    gpus = set(matrix.gpus())
    return {pair: matrix.cells[pair] for pair in _off(matrix.cells) if set(pair) <= gpus}


def _matrix(names: tuple[str, ...], lines: Iterable[str]) -> Matrix:
    """Parse the matrix below a header. Raises InvalidInput unless each GPU has a complete row and the rows agree."""
    index = {name: place for place, name in enumerate(names)}
    gpus = [place for name, place in index.items() if re.fullmatch(_DEVICE, name)]
    cells: dict[Pair, str] = {}
    rest: dict[int, str] = {}
    for line in lines:
        row = _ROW.search(line)
        if row is not None and row[1] in index and index[row[1]] not in rest:  # use only each device's first row
            device, words = index[row[1]], row[2].replace("|", " ").split(maxsplit=len(names))
            cells |= {(device, place): word for place, word in enumerate(words[: len(names)])}
            rest[device] = words[len(names)] if len(words) > len(names) else ""
    for gpu in gpus:
        if any((gpu, other) not in cells for other in gpus) or cells[gpu, gpu] not in ("X", "0", "SELF", "N/A"):
            raise _incomplete(f"no complete row of {names[gpu]}")
    odd = [(a, b) for a, b in combinations(gpus, 2) if cells[a, b] != cells[b, a]]
    if odd or len(gpus) < 1:
        raise _incomplete(f"{names[odd[0][0]]} and {names[odd[0][1]]} differ" if odd else "no GPUs")
    return Matrix(names, cells, rest)


def _incomplete(found: str) -> InvalidInput:
    tools = "`nvidia-smi topo -m`, `rocm-smi --showtopo` or `amd-smi topology`"
    return InvalidInput("the matrix of GPUs is not complete: {}", found, f"save the complete output of {tools}")


def _nvidia_machine(text: str, chosen: GpuModel | None) -> Machine:
    found = [*_nvidia_matrices(text)]
    if not found:
        raise _incomplete("no line with the names of GPUs")
    matrices = [_matrix(names, lines) for names, lines in found]
    matrices = [matrix for matrix in matrices if not _PERMISSIONS & {matrix.cells[pair] for pair in _off(matrix.cells)}]
    linked = [matrix for matrix in matrices if any(cell.startswith("NV") for cell in _joined(matrix).values())]
    of_same = [(matrix.devices, matrix.rest) for matrix in linked]  # `topo -mp` prints the same machine without NVLinks
    matrices = [each for each in matrices if each in linked or (each.devices, each.rest) not in of_same]
    if any(_joined(other) != _joined(matrices[0]) for other in matrices):
        raise _several(f"{len(matrices)} matrices that differ")
    if not matrices:
        rule = "`nvidia-smi topo -p2p` says which GPUs may access each other, but not how they are connected"
        raise InvalidInput(rule, "", "save what `nvidia-smi topo -m` prints instead")
    matrix = matrices[0]
    names = matrix.devices
    gpus = matrix.gpus()
    for (a, b), cell in _joined(matrix).items():
        if cell == "N/A" or not _NVIDIA_CELL.fullmatch(cell):
            rule = f"unknown connection of {names[a]} and {names[b]}: {{}}"
            raise InvalidInput(
                rule, f"'{cell}'", "dump the machine with NCCL_TOPO_DUMP_FILE, or write its links as JSON"
            )
    if len(gpus) == 1 and all(name in ("GPU0",) for name in names):
        raise _incomplete("a single GPU")
    lanes = {pair: int(cell[2:]) for pair, cell in _joined(matrix).items() if cell.startswith("NV")}
    fitting = [each for each in models_named(text) if isinstance(each.architecture, int) and (each.links or not lanes)]
    rates = {(each.link_rate.physical, each.pci) for each in fitting}
    model = chosen or (fitting[0] if len(rates) == 1 else None)
    most = model.links if model is not None and model.links else MOST_NVLINKS
    each, switched = _nvlink_of(model, lanes, gpus, most)
    hosts, place = _hosts(matrix, gpus, text, model)
    component = _groups(gpus, lanes)
    islands = {root: str(number) for number, root in enumerate(dict.fromkeys(component[gpu] for gpu in switched))}
    slot = _slot(model)
    if re.search(r"\bG[BH](?:10|[23]00)\b", text):
        slot = slot.as_guess("slots of GPUs that C2C joins to their CPU", "dump the machine with NCCL_TOPO_DUMP_FILE")
    machine_gpus = []
    for rank, gpu in enumerate(gpus):
        mine = {b: count for (a, b), count in lanes.items() if a == gpu}
        if gpu in switched:
            name = islands[component[gpu]] if len(islands) > 1 else ""
            wires = [Wire("nvswitch", name, each.times(max(mine.values())))]
        else:
            wires = [Wire("gpu", matrix.devices[b], each.times(count)) for b, count in sorted(mine.items())]
        nvls = model is not None and isinstance(model.architecture, int) and model.architecture >= 90
        nvls = nvls or (model is None and max(mine.values(), default=0) > 12)
        machine_gpus.append(Gpu((rank,), matrix.devices[gpu], place[gpu], slot, tuple(wires), nvls))
    machine_nics: list[Nic] = []
    for index in (index for index in range(len(names)) if index not in gpus and index in place):
        legend = re.search(rf"^\s*{re.escape(names[index])}\s*:\s*(\S+)\s*$", text, re.MULTILINE)
        name = legend[1] if legend else names[index]  # such as mlx5_0
        machine_nics.append(Nic(str(len(machine_nics)), names[index], place[index], slot, None, name=name))
    rack = rack_gpus(machine_gpus, 100) if re.search(r"\bGB[23]00\b", text) else 0
    hides_links = not lanes and (_ONLY_PCI.search(text) or (model is not None and is_module(model, text)))
    facts = _model_fact(model, chosen)
    return Machine(tuple(machine_gpus), tuple(machine_nics), hosts, bool(hides_links), rack, facts)


def _model_fact(model: GpuModel | None, chosen: GpuModel | None) -> tuple[Assumption, ...]:
    if model is None:
        return ()
    return (Assumption("model of the GPUs", model.name, "file", "--model" if chosen else "name in the text"),)


def _nvlink_of(
    model: GpuModel | None, lanes: Mapping[Pair, int], gpus: Sequence[int], most: int
) -> tuple[Rate, set[int]]:
    """Return the rate of one NVLink, and the GPUs whose NVLinks lead to an NVSwitch.

    On GPUs with 5 to 12 NVLinks, each NVLink has 25 GB/s; with more or fewer, the rate depends on the GPU model.
    """
    sums = {gpu: sum(count for (a, _), count in lanes.items() if a == gpu) for gpu in gpus}
    component = _groups(gpus, lanes)
    crowded = {component[gpu] for gpu in gpus if sums[gpu] > most}
    switched = {gpu for gpu in gpus if component[gpu] in crowded and sums[gpu]}
    if model is not None and model.links:
        return model.link_rate, switched
    shown = max((max(count for (a, _), count in lanes.items() if a == gpu) for gpu in gpus if sums[gpu]), default=0)
    links = shown if switched else max(sums.values(), default=0)
    if links > 12:
        value = nvlink_rate(90).as_guess("NVLink 4 of H100 or H200; B200 has NVLink 5 of 50 GB/s", _ASK_MODEL)
    elif links <= 4:
        value = nvlink_rate(80).as_guess(
            "NVLink 3 of A30, V100 or RTX 20; A40 and RTX 3090 have 14.0625 GB/s", _ASK_MODEL
        )
    else:
        value = nvlink_rate(80 if links > 6 else 70)
    return value, switched


def _groups(members: Iterable[int], pairs: Iterable[Pair]) -> dict[int, int]:
    """Return, for each member, the smallest member of its connected component in the graph with edges `pairs`."""
    root = {member: member for member in members}
    for a, b in pairs:
        if a in root and b in root and root[a] != root[b]:
            low, high = sorted((root[a], root[b]))
            root = {member: low if part == high else part for member, part in root.items()}
    return root


def _hosts(
    matrix: Matrix, gpus: Sequence[int], text: str, model: GpuModel | None
) -> tuple[tuple[HostSwitch, ...], dict[int, int]]:
    """Return (CPUs and PCI switches, index of the CPU or switch that each device is attached to).

    A cell may show NVLinks and hide the PCI connection, so GPUs with equal CPU affinities are assumed to share a CPU.
    """
    known = [index for index in range(len(matrix.devices)) if any((index, gpu) in matrix.cells for gpu in gpus)]
    near = [pair for pair, cell in matrix.cells.items() if cell in _NEAR]
    affinity = {gpu: matrix.rest.get(gpu, "").split("\t")[0].split("  ")[0].strip() for gpu in gpus}
    shared = [(a, b) for a, b in combinations(gpus, 2) if affinity[a] == affinity[b] and _is_affinity(affinity[a])]
    on_one_cpu = [pair for pair, cell in matrix.cells.items() if cell in _ON_ONE_CPU] + shared
    if not any(map(_is_affinity, affinity.values())) and not {"SYS", "SOC"} & set(matrix.cells.values()):
        on_one_cpu += list(combinations(gpus, 2))
    cpu, bridge = _groups(known, on_one_cpu), _groups(known, near)
    between = _cpu_of(text)
    hosts = [HostSwitch(f"cpu:{number}", None, between) for number, _ in enumerate(sorted(set(cpu.values())))]
    of_cpu = {root: number for number, root in enumerate(sorted(set(cpu.values())))}
    of_bridge: dict[int, int] = {}
    for number, root in enumerate(sorted(set(bridge.values()))):
        if sum(part == root for part in bridge.values()) > 1:
            of_bridge[root] = len(hosts)
            hosts.append(HostSwitch(f"pci:{number}", of_cpu[cpu[root]], _slot(model)))
    return tuple(hosts), {index: of_bridge.get(bridge[index], of_cpu[cpu[index]]) for index in known}


def _is_affinity(text: str) -> bool:
    return re.match(r"[0-9][0-9,-]*", text) is not None


def _cpu_of(text: str) -> Rate:
    """Return the rate between CPUs, derived from `lscpu` output in `text`; a guess if there is none."""
    found = {
        key: re.search(rf"^\s*{key}:\s*(\S+)\s*$", text, re.MULTILINE) for key in ("Vendor ID", "CPU family", "Model")
    }
    vendor, family, model = ((match[1] if match else "") for match in found.values())
    if vendor and family.isdigit() and model.isdigit():
        return cpu_rate({"arch": "x86_64", "vendor": vendor}, int(family), int(model))
    known = cpu_rate({"arch": "x86_64", "vendor": "GenuineIntel"}, 6, 0x8F)
    return known.as_guess("links between CPUs, as 4 UPI of 16 GT/s", "import a dump of NCCL, which names the CPU")


def _slot(model: GpuModel | None) -> Rate:
    if model is None:
        return pci_rate_of(4, _ASK_MODEL, is_known=False)
    return pci_rate_of(model.pci, f"data sheet of {model.name}", is_known=True)


def _is_amd(text: str) -> bool:
    return bool(
        re.search(r"Link Type between two GPUs|LINK TYPE TABLE|WEIGHT TABLE|Weight between two GPUs", text)
        or _AMD_PAIR.search(text)
        or re.search(r'"link_type"\s*:|\blink_type_gpu_\d', text)
    )


def _amd_machine(text: str, chosen: GpuModel | None) -> Machine:
    tables, count = _amd_tables(text)
    kinds = tables.get("type", {})
    if count < 2 or len(kinds) < count * (count - 1):
        raise _incomplete("a single GPU" if count == 1 else "no complete table of link types")
    if odd := sorted({kind for kind in kinds.values() if kind.upper() not in ("XGMI", "PCIE")}):
        raise _incomplete(f"links of type {odd[0]}")
    status, most = tables.get("status", {}), tables.get("bandwidth", {})
    xgmi = [
        pair
        for pair in combinations(range(count), 2)
        if kinds[pair].upper() == "XGMI" and status.get(pair, "").upper() != "DISABLED"
    ]
    # Compared with direct links, routes through other GPUs have a multiple of the weight, or more hops.
    weights = {pair: _number(tables.get("weight", {}).get(pair)) or 0 for pair in xgmi}
    device = _groups(range(count), (pair for pair in xgmi if weights[pair] == _ONE_DEVICE_WEIGHT))
    joined = [pair for pair in xgmi if device[pair[0]] != device[pair[1]]]
    least = min((weights[pair] for pair in joined if weights[pair]), default=1)
    hops = {pair: _number(tables.get("hops", {}).get(pair)) or 1 for pair in joined}
    fewest = min(hops.values(), default=1)
    near = (pair for pair in joined if weights[pair] < 2 * least and hops[pair] == fewest and most.get(pair) != "0-0")
    direct = list(dict.fromkeys((device[a], device[b]) for a, b in near))
    named = [model for model in models_named(text) if isinstance(model.architecture, str)]
    if chosen is not None and not isinstance(chosen.architecture, str):
        raise InvalidInput("the model {} has no xGMI links, which this matrix lists", chosen.name, _AMD_MODEL)
    model = chosen or (named[0] if len({model.link_rate.physical for model in named}) == 1 else None)
    devices = sorted(set(device.values()))
    routed = len(direct) < len({(device[a], device[b]) for a, b in joined})
    facts: list[Assumption] = []
    if not direct:
        each, counts = xgmi_rate("gfx942"), dict[Pair, int]()
    elif (model is None and routed) or (model is not None and not model.links):
        counts, fact = _mi200_links(direct, len(devices), tables)
        each, facts = xgmi_rate("gfx90a"), [fact]
        if fact.source == "guess":
            each = each.as_guess(fact.what, fact.reference)
    elif model is None:
        each = xgmi_rate("gfx942").as_guess("xGMI of MI300X; MI355X has 76.8 GB/s, MI100 50", _ASK_MODEL)
        counts = dict.fromkeys(direct, 1)
    else:
        each, counts = model.link_rate, dict.fromkeys(direct, model.links)
    if (links := sum(number for pair, number in counts.items() if 0 in pair)) > _MOST_XGMI:
        raise InvalidInput(f"a GPU has at most {_MOST_XGMI} xGMI links, got {{}} of GPU 0", links, _PARTITIONS)
    cpu = _amd_cpus(text, count, tables)
    slot = _slot(model)
    hosts = [HostSwitch(f"cpu:{number}", None, _cpu_of(text)) for number in range(max(cpu.values()) + 1)]
    gpus = []
    for gpu in devices:
        wires = [
            Wire("gpu", f"gpu{a if b == gpu else b}", each.times(number))
            for (a, b), number in counts.items()
            if gpu in (a, b)
        ]
        ranks = tuple(rank for rank in range(count) if device[rank] == gpu)
        gpus.append(Gpu(ranks, f"gpu{gpu}", cpu[gpu], slot, tuple(wires)))
    return Machine(tuple(gpus), (), tuple(hosts), facts=(*_model_fact(model, chosen), *facts, *shared_gpus(gpus)))


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None


def _mi200_links(direct: Sequence[Pair], count: int, tables: Mapping[str, Cells]) -> tuple[dict[Pair, int], Assumption]:
    """Return (links of each linked pair of MI200 dies, their basis), from printed bandwidths or the MI250X layout."""
    most = {pair: re.fullmatch(r"\d+-(\d+)", tables.get("bandwidth", {}).get(pair, "")) for pair in direct}
    if all(match is not None and int(match[1]) >= 50_000 for match in most.values()):
        counts = {pair: int(match[1]) // 50_000 for pair, match in most.items() if match is not None}
        return counts, Assumption("xGMI links of a pair", "1 for every 50,000 MB/s", "file", "table of bandwidths")
    what = "xGMI links of a pair of MI200 GPUs"
    import networkx as nx  # noqa: PLC0415 - only needed if GPUs are in an unusual order

    for name, gpus in (("mi250half", 8), ("mi250", 16)):
        known = {pair: links for pair, links in MI250_LINKS.items() if pair[1] < gpus}
        if set(direct) == set(known):
            return known, Assumption(what, "4, 2 or 1", "published", f"AMD: MI250X, as {name}")
        matcher = nx.isomorphism.GraphMatcher(nx.Graph(list(known)), nx.Graph(direct))
        if matcher.is_isomorphic():
            ends = {pair: sorted(matcher.mapping[gpu] for gpu in pair) for pair in known}
            counts = {(ends[pair][0], ends[pair][1]): links for pair, links in known.items()}
            return counts, Assumption(what, "4, 2 or 1, in another order", "guess", f"AMD: MI250X, as {name}")
    advice = "add what `rocm-smi --shownodesbw` prints: links of a pair times 50,000 MB/s"
    links = 4 if count == 2 else 1  # two dies are on the same module
    return dict.fromkeys(direct, links), Assumption(what, str(links), "guess", advice)


def _amd_cpus(text: str, count: int, tables: Mapping[str, Cells]) -> dict[int, int]:
    """Return the CPU of each GPU: its NUMA node if `text` states it; otherwise, GPUs few hops apart share a CPU."""
    numa = {int(gpu): int(node) for gpu, node in re.findall(r"GPU\[(\d+)\].*Numa Node:\s*(\d+)", text)}
    if set(numa) >= set(range(count)):
        order = {node: number for number, node in enumerate(sorted(set(numa.values())))}
        return {gpu: order[numa[gpu]] for gpu in range(count)}
    hops = {pair: _number(tables.get("hops", {}).get(pair)) or 0 for pair in combinations(range(count), 2)}
    on_pci = [number for pair, number in hops.items() if tables["type"][pair].upper() != "XGMI"]
    root = _groups(range(count), (pair for pair, number in hops.items() if number <= min(on_pci, default=number)))
    order = {part: number for number, part in enumerate(sorted(set(root.values())))}
    return {gpu: order[root[gpu]] for gpu in range(count)}


def _amd_tables(text: str) -> tuple[dict[str, dict[Pair, str]], int]:
    """Return the cells of each table, keyed by (GPU, other GPU), and the number of GPUs."""
    found = _amd_json(text)
    if found is not None:
        return found
    tables: dict[str, dict[Pair, str]] = {}
    names: list[str] = []
    title = "other"
    for line in text.splitlines():
        words = line.replace("|", " ").split()
        if words and all(re.fullmatch(_DEVICE, word) for word in words) and len(words) > 1:
            names = words
        elif words and re.fullmatch(_DEVICE, words[0]) and words[0] in names and len(words) > len(names):
            row = names.index(words[0])
            cells = tables.setdefault(title, {})
            for column, cell in enumerate(words[1 : len(names) + 1]):
                if cells.setdefault((row, column), cell) != cell and title in ("type", "weight", "hops"):
                    raise _several(f"two tables that differ at {names[row]} and {names[column]}")
        else:
            title = next((name for name, pattern in _TABLES if pattern.search(line)), title)
    kinds = {pair: cell for pair, cell in tables.get("type", {}).items() if pair[0] != pair[1]}
    return tables | {"type": kinds}, len(names)


def _amd_json(text: str) -> tuple[dict[str, dict[Pair, str]], int] | None:
    """Return the tables in JSON or CSV output of rocm-smi or amd-smi, as `_amd_tables` does, or None for other text."""
    flat: dict[tuple[str, int, int], str] = {}  # rocm-smi's values by (table, GPU, other GPU)
    pairs: list[tuple[str, str]] = re.findall(r'"(\(Topology\)[^"]*)"\s*[:,]\s*"?([^",}\n]*)', text)
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if len(_AMD_PAIR.findall(line)) > 1:  # the header of a CSV file with one row of values
            values = next((row for row in lines[number:] if row.startswith("system,")), "")
            pairs += zip(line.split(","), values.split(","), strict=False)
    for key, value in pairs:
        if (match := _AMD_PAIR.fullmatch(key)) is not None:
            name = {"weight": "weight", "hops": "hops", "link type": "type"}[match[1].lower()]
            if flat.setdefault((name, int(match[2]), int(match[3])), value) != value:
                raise _several(f"two values for {key}")
    if flat:
        devices = sorted({device for _, *pair in flat for device in pair})
        number_of = {device: number for number, device in enumerate(devices)}
        named: dict[str, dict[Pair, str]] = {}
        for (name, first, second), value in flat.items():
            a, b = number_of[first], number_of[second]
            named.setdefault(name, {}).update({(a, b): value, (b, a): value})
        return named, len(devices)
    if (header := _AMD_CSV.search(text)) is not None:
        rows = csv.DictReader(text[header.start() :].splitlines())
        return _amd_links([row for row in rows if (row.get("gpu") or "").isdigit()])
    start = re.search(r"[\[{]\s*[\[{\"]", text)
    if start is None or '"link_type"' not in text:
        return None
    written = re.sub(r",(\s*[}\]])", r"\1", text[start.start() :])  # manuals print a comma after the last member
    try:
        document, _ = json.JSONDecoder().raw_decode(written)
    except ValueError as error:
        raise _incomplete(f"JSON that breaks off or is damaged: {error}") from None
    entries = (
        document if isinstance(document, list) else next((v for v in document.values() if isinstance(v, list)), [])
    )
    return _amd_links([entry for entry in entries if isinstance(entry, dict)])


def _amd_links(gpus: Sequence[Mapping[str, Any]]) -> tuple[dict[str, dict[Pair, str]], int]:
    tables: dict[str, dict[Pair, str]] = {name: {} for name in _JSON_NAMES.values()}
    numbers = (str(gpu.get("gpu")) for gpu in gpus)
    place = {int(number) if number.isdigit() else row: row for row, number in enumerate(numbers)}
    for row, gpu in enumerate(gpus):
        found: list[tuple[Any, str, Any]] = []  # (other GPU, member, value) in newer or older JSON, or in CSV
        for key, value in gpu.items():
            if key == "links" and isinstance(value, list):
                for link in (each for each in value if isinstance(each, dict)):
                    found += ((link.get("gpu"), name, cell) for name, cell in link.items())
            for name, cell in value.items() if isinstance(value, dict) else [(key, value)]:
                member, _, number = str(name).rpartition("gpu_")
                if number.isdigit():
                    found.append((int(number), member.removesuffix("_") or key, cell))
        for other, key, cell in found:
            table, column = _JSON_NAMES.get(key), place.get(other)
            if table is not None and column is not None and column != row:
                tables[table].setdefault((row, column), str(cell))
    return tables, len(gpus)


_JSON_NAMES = {
    "weight": "weight", "num_hops": "hops", "hops": "hops", "link_type": "type", "type": "type",
    "bandwidth": "bandwidth", "numa_bandwidth": "bandwidth", "link_status": "status",
}  # fmt: skip
"""Maps the name of a member or column in amd-smi's output to the table to which its values belong."""
