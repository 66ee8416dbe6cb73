"""Topology dumps as NCCL and RCCL write them, made for tests."""

from __future__ import annotations

from collections.abc import Iterable


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
