"""Machine files as people have them, with the right bounds in GB/s (algbw), and public machines with measurements."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chorale.synth.topology.topology import Topology
from chorale.tuner.files.machine_files import MachineOptions, read_network
from tests.dumps import described

DATA = Path(__file__).parent / "data" / "machines"
NVSWITCH_8 = 8 / 14  # allreduce: 2 (n - 1) / n of the vector through the links of a GPU


@dataclass(frozen=True, slots=True)
class MachineCase:
    """A machine file with its number of ranks, what the library is expected to reach, and the bound."""

    name: str
    ranks: int
    expected: float
    bound: float
    options: Mapping[str, Any] = field(default_factory=dict)
    collective: str = "allreduce"


CASES = (
    MachineCase("spark102.xml", 2, 48, 63, {"boxes": 2}, "allgather"),  # C2C; two NICs behind four lanes each
    MachineCase("onegpu-twonics.xml", 2, 48, 63, {"boxes": 2}, "allgather"),  # both through the GPU's slot
    MachineCase("b200-good.txt", 8, 18 * 40.1 * NVSWITCH_8, 18 * 50 * NVSWITCH_8, {"model": "B200"}),
    MachineCase("b200-good.txt", 8, 18 * 20.6 * NVSWITCH_8, 18 * 25 * NVSWITCH_8, {"model": "H200"}),
    MachineCase("b200-collect-env.txt", 8, 18 * 40.1 * NVSWITCH_8, 18 * 50 * NVSWITCH_8),
    MachineCase("gb200-2trays.xml", 8, 18 * 40.1 * NVSWITCH_8, 18 * 50 * NVSWITCH_8),
    MachineCase("a100x4-nv4.txt", 4, 3 * 4 * 20 / 1.5, 3 * 4 * 25 / 1.5),
    MachineCase("mi250x-rocm-smi.txt", 8, 150 * 36 / 50, 150),
    MachineCase("mi250x-amd-smi.txt", 8, 150 * 36 / 50, 150),
    MachineCase("mig1716.xml", 9, 22, 63),  # two ranks share the slot of one GPU; sockets at 22 for NCCL
    MachineCase("ib-rails.txt", 4, 24 * 4 / 3, 31.5 * 4 / 3, {"machine": "onegpu-twonics.xml"}, "allgather"),
    MachineCase("ib-rails.txt", 2, 48, 63, {"machine": "spark102.xml", "boxes": 2}, "allgather"),
)
"""The right values follow from data sheets and from what NCCL and RCCL reckon with; none is taken from a run."""


def network(case: MachineCase) -> Topology:
    """Return the network that the file of `case` describes."""
    options = dict(case.options)
    if "machine" in options:
        options["machine"] = str(DATA / options["machine"])
    return read_network(str(DATA / case.name), MachineOptions(**options)).topology


def public_network(machine: Mapping[str, Any], folder: Path) -> Topology:
    """Return the network of a machine of public.json, whose file is written into `folder` unless it is shipped."""
    path = folder / ("machine.txt" if machine["form"] == "matrix" else "machine.xml")
    if machine["form"] == "file":
        path = DATA / machine["path"]
    else:
        path.write_bytes(described(machine))
    return read_network(str(path), MachineOptions(model=machine.get("model"), boxes=machine.get("boxes"))).topology


PUBLIC: list[dict[str, Any]] = json.loads((DATA / "public.json").read_text())["machines"]
