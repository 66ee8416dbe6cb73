"""Topology dumps as NCCL and RCCL write them, made for tests."""

import itertools
from collections.abc import Iterable, Mapping
from typing import Any


def system(*cpus: str) -> bytes:
    return f'<system version="1">{"".join(cpus)}</system>'.encode()


def cpu(number: int, *inside: str, about: str = 'arch="x86_64" vendor="AuthenticAMD" familyid="25" modelid="1"') -> str:
    return f'<cpu numaid="{number}" affinity="ffffffff" {about}>{"".join(inside)}</cpu>'


def pci(bus: str, *inside: str, kind: str = "0x060400", speed: str = "16.0 GT/s PCIe", width: str = "16") -> str:
    """Return a PCI device; without another class, a switch."""
    where = f'busid="{bus}" class="{kind}" vendor="0x1000" link_speed="{speed}" link_width="{width}"'
    return f"<pci {where}>{''.join(inside)}</pci>"


def gpu(bus: str, rank: int, *links: str, about: str = 'sm="80"', width: str = "16") -> str:
    inside = f'<gpu dev="{rank}" {about} rank="{rank}" gdr="1">{"".join(links)}</gpu>'
    return pci(bus, inside, kind="0x030200", width=width)


def nvlink(target: str, count: int, kind: str = "0x030200") -> str:
    return f'<nvlink target="{target}" count="{count}" tclass="{kind}"/>'


def to_nvswitches(*counts: int) -> Iterable[str]:
    return [nvlink(f"0000:c{index}:00.0", count, "0x068000") for index, count in enumerate(counts)]


def xgmi(target: str, count: int) -> str:
    return f'<xgmi target="{target}" count="{count}" tclass="0x038000"/>'


def nic(bus: str, *ports: tuple[int, int], speed: str = "16.0 GT/s PCIe") -> str:
    """Return a NIC with ports (number, Mbit/s)."""
    return pci(bus, nets(*ports), kind="0x020700", speed=speed)


def nets(*ports: tuple[int, int]) -> str:
    inside = (f'<net name="mlx5_{dev}" dev="{dev}" speed="{mbit}" port="1" gdr="1"/>' for dev, mbit in ports)
    return f"<nic>{''.join(inside)}</nic>"


def nvswitch_machine() -> bytes:
    """Four A100, two behind each PCI switch, beside one NIC of 200 Gbit/s each; NVSwitches join them."""
    halves = []
    for half in range(2):
        inside = []
        for rank in (2 * half, 2 * half + 1):
            inside.append(gpu(f"0000:{half}{rank}:00.0", rank, *to_nvswitches(6, 6)))
            inside.append(nic(f"0000:{half}{rank + 8:x}:00.0", (rank, 200_000)))
        halves.append(cpu(half, pci(f"0000:{half}f:00.0", *inside)))
    return system(*halves)


def pairs_machine() -> bytes:
    """Four A100, each with a CPU of its own; NVLink joins two pairs; one socket below the first CPU."""
    return system(
        cpu(0, gpu("0001:00:00.0", 0, nvlink("0002:00:00.0", 12)), nets((0, 100_000))),
        cpu(1, gpu("0002:00:00.0", 1, nvlink("0001:00:00.0", 12))),
        cpu(2, gpu("0003:00:00.0", 2, nvlink("0004:00:00.0", 12))),
        cpu(3, gpu("0004:00:00.0", 3, nvlink("0003:00:00.0", 12))),
    )


def xgmi_machine() -> bytes:
    """Three MI250 dies in a row with one and four xGMI links."""
    about = 'sm="94" gcn="gfx90a:sramecc+:xnack-"'
    return system(
        cpu(
            0,
            gpu("0000:a0:00.0", 0, xgmi("0000:b0:00.0", 4), about=about),
            gpu("0000:b0:00.0", 1, xgmi("0000:a0:00.0", 4), xgmi("0000:c0:00.0", 1), about=about),
            gpu("0000:c0:00.0", 2, xgmi("0000:b0:00.0", 1), about=about),
            nic("0000:d0:00.0", (0, 100_000)),
        )
    )


def described(machine: Mapping[str, Any]) -> bytes:
    """Return the file of a machine of `tests/data/machines/public.json`: structure and rates of a public one."""
    return {"dump": _dump, "hwloc": _hwloc, "matrix": _matrix}[machine["form"]](machine)


def _dump(machine: Mapping[str, Any]) -> bytes:
    vendor, family, model = machine["cpu"]
    about = f'arch="x86_64" vendor="{vendor}" familyid="{family}" modelid="{model}"'
    facts, speed = machine["gpu"], machine["slot"]
    count = sum(machine["switches"])
    buses = [f"0000:{16 * rank + 8:02x}:00.0" for rank in range(count)]
    cpus, rank = [], 0
    for socket, switches in enumerate(machine["switches"]):
        inside = []
        for _ in range(switches):
            links = "".join(xgmi(other, 1) for other in buses if other != buses[rank])
            gpu_text = f'<gpu dev="{rank}" sm="{facts["sm"]}" gcn="{facts["gcn"]}" rank="{rank}">{links}</gpu>'
            device = pci(buses[rank], gpu_text, kind="0x120000", speed=speed)
            if "device" in facts:
                device = device.replace('vendor="0x1000"', f'vendor="0x1002" device="{facts["device"]}"')
            port = []
            if "nic_mbit" in machine:
                bus = f"0000:{16 * rank + 3:02x}:00.0"
                port = [pci(bus, nets((rank, machine["nic_mbit"])), kind="0x020000", speed=speed)]
            flat = machine.get("flat")
            inside += [device, *port] if flat else [pci(f"0000:{16 * rank + 1:02x}:00.0", device, *port, speed=speed)]
            rank += 1
        cpus.append(cpu(socket, *inside, about=about))
    return system(*cpus)


def _hwloc(machine: Mapping[str, Any]) -> bytes:
    """As version 2 writes it, without caches and cores: bridges, PCI devices, OS devices and matrices."""
    vendor, family, model = machine["cpu"]
    facts, indexes = machine["gpu"], itertools.count(1000)
    devices, halves = 0, []

    def info(**values: object) -> str:
        return "".join(f'<info name="{key}" value="{value}"/>' for key, value in values.items())

    def device(kind: str, speed: float, inside: str = "") -> str:
        nonlocal devices
        devices += 1
        place = f'gp_index="{devices}" pci_busid="0000:{devices:02x}:00.0" pci_type="{kind} [0000:0000] 00"'
        return f'<object type="PCIDev" {place} pci_link_speed="{speed:.6f}">{inside}</object>'

    def bridge(inside: str, kind: str, speed: float = 0.0) -> str:
        number = next(indexes)
        place = f'bridge_type="{kind}" pci_busid="0001:{number - 1000:02x}:00.0" pci_link_speed="{speed:.6f}"'
        return f'<object type="Bridge" gp_index="{number}" {place}>{inside}</object>'

    gpus, switches, packages = [], [], ""
    for socket, groups in enumerate(machine["gpus"]):
        below = ""
        for count in groups:
            group = []
            for _ in range(count):
                named = info(GPUModel=facts["name"]) if "name" in facts else ""
                about = f'gp_index="{next(indexes)}" name="opencl0" osdev_type="5"'
                inner = (
                    f'<object type="OSDev" {about}>{named}</object>' if named else info(PCIDevice=facts["device_name"])
                )
                group.append(device(f"0302 [{facts['id']}]", machine["slot"], inner))
                gpus.append(devices)
            for _ in range(machine.get("nics", 0)):
                port = f'<object type="OSDev" gp_index="{next(indexes)}" name="rdma{devices}" osdev_type="3"/>'
                group.append(device("0200 [1d0f:efa2]", machine["nic_slot"], port))
            if machine.get("flat"):
                below += bridge("".join(group), "0-1")
            else:
                ports = "".join(bridge(each, "1-1", machine["slot"]) for each in group)
                below += bridge(bridge(bridge(ports, "1-1", machine["slot"]), "1-1", machine["slot"]), "0-1")
        for number in range(machine.get("nvswitches", 0)):
            if number % len(machine["gpus"]) == socket:
                below += bridge(device("0680 [10de:22a3]", 3.938462), "0-1")
                switches.append(devices)
        halves.append(len(gpus))
        cpu_facts = info(CPUVendor=vendor, CPUFamilyNumber=family, CPUModelNumber=model)
        packages += f'<object type="Package" gp_index="{2000 + socket}">{cpu_facts}{below}</object>'
    matrix = _hwloc_matrix(machine, gpus, switches, halves) if "matrix" in machine else ""
    head = '<?xml version="1.0"?>\n<!DOCTYPE topology SYSTEM "hwloc2.dtd">\n<topology version="2.0">'
    architecture = info(Architecture=machine.get("architecture", "x86_64"))
    return f'{head}<object type="Machine" gp_index="9999">{architecture}{packages}</object>{matrix}</topology>'.encode()


def _hwloc_matrix(machine: Mapping[str, Any], gpus: list[int], switches: list[int], halves: list[int]) -> str:
    """Return the rates in MB/s between GPUs and the switches of their half, or of pairs of GPUs and their CPUs."""
    ends = [f"PCIDev:{each}" for each in (*gpus, *switches)]
    joined: dict[tuple[str, str], int] = {}
    for index, one in enumerate(gpus):
        half = 0 if index < halves[0] else 1
        beside = [each for number, each in enumerate(switches) if number % 2 == half]
        for other in beside:
            joined[f"PCIDev:{one}", f"PCIDev:{other}"] = 25000
        if "pairs" in machine:
            joined[f"PCIDev:{one}", f"PCIDev:{gpus[index ^ 1]}"] = 1000 * machine["pairs"]
            joined[f"PCIDev:{one}", f"Package:{2000 + half}"] = 1000 * machine["pairs"]
    if "pairs" in machine:
        ends += ["Package:2000", "Package:2001"]
    rows = " ".join(str(joined.get((a, b), joined.get((b, a), 0))) for a in ends for b in ends)
    inside = f"<indexes>{' '.join(ends)} </indexes><u64values>{rows} </u64values>"
    return f'<distances2hetero nbobjs="{len(ends)}" kind="25" name="{machine["matrix"]}">{inside}</distances2hetero>'


def _matrix(machine: Mapping[str, Any]) -> bytes:
    ranks = range(machine["ranks"])
    lines = ["\t" + "\t".join(f"GPU{rank}" for rank in ranks) + "\tCPU Affinity\tNUMA Affinity"]
    for rank in ranks:
        cells = "\t".join(" X " if other == rank else machine["cells"] for other in ranks)
        lines.append(f"GPU{rank}\t{cells}\t0-31\t0")
    return ("\n".join(lines) + "\n").encode()
