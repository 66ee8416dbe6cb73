"""Machine files as people have them: the right value, what Chorale answered at first, and what it answers now.

`python -m tests.machines [FOLDER]` prints the table, then that of public machines with published measurements. Cases
whose file is not in FOLDER (by default tests/data/machines) are left out. Rates are algbw in GB/s.
"""

import contextlib
import io
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

from chorale.runners.api.base import bus_factor
from chorale.synth.collective import ALLREDUCE, parse_collective
from chorale.synth.errors import ChoraleError
from chorale.synth.topology.topology import Topology
from chorale.tuner.cli.main import main
from chorale.tuner.files.machine_files import MachineOptions, read_network
from chorale.tuner.reports.bound import bound_report
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
    before: str
    options: Mapping[str, Any] = field(default_factory=dict)
    collective: str = "allreduce"


CASES = (
    MachineCase("spark102.xml", 2, 48, 63, "12", {"boxes": 2}, "allgather"),  # C2C; two NICs behind four lanes each
    MachineCase("onegpu-twonics.xml", 2, 48, 63, "96", {"boxes": 2}, "allgather"),  # both through the GPU's slot
    MachineCase("b200-good.txt", 8, 18 * 40.1 * NVSWITCH_8, 18 * 50 * NVSWITCH_8, "257.1", {"model": "B200"}),
    MachineCase("b200-good.txt", 8, 18 * 20.6 * NVSWITCH_8, 18 * 25 * NVSWITCH_8, "257.1", {"model": "H200"}),
    MachineCase("b200-collect-env.txt", 8, 18 * 40.1 * NVSWITCH_8, 18 * 50 * NVSWITCH_8, "257.1"),
    MachineCase("gb200-2trays.xml", 8, 18 * 40.1 * NVSWITCH_8, 18 * 50 * NVSWITCH_8, "refused"),
    MachineCase("a100x4-nv4.txt", 4, 3 * 4 * 20 / 1.5, 3 * 4 * 25 / 1.5, "200"),
    MachineCase("mi250x-rocm-smi.txt", 8, 150 * 36 / 50, 150, "256"),
    MachineCase("mi250x-amd-smi.txt", 8, 150 * 36 / 50, 150, "refused"),
    MachineCase("mig1716.xml", 9, 22, 63, "refused"),  # two ranks share the slot of one GPU; sockets at 22 for NCCL
    MachineCase("ib-rails.txt", 4, 24 * 4 / 3, 31.5 * 4 / 3, "refused", {"machine": "onegpu-twonics.xml"}, "allgather"),
    MachineCase("ib-rails.txt", 2, 48, 63, "refused", {"machine": "spark102.xml", "boxes": 2}, "allgather"),
)
"""The right values follow from data sheets and from what NCCL and RCCL reckon with; none is taken from a run."""

COMMANDS = (
    ("one-off.txt", "bound without(file:{};node=3)", "algbw", "699", "337.5 (H100)"),
    ("b200-one-gpu-off-nvlink.txt", "bound without(file:{}?model=B200;node=2)", "algbw", "1594", "525 (B200)"),
    ("ib71.txt", "bound file:{}", "algbw", "75, 5 ranks", "66.7, 4 ranks"),
    ("ib71.txt", "bound file:{} --collective allgather", "algbw", "125, 5 ranks", "133.3, 4 ranks"),
    ("p2p-ns.txt", "bound file:{}", "", "32", "refused: which command to use"),
    ("graph1667.xml", "bound file:{}", "", "must be GraphML", "named, see topology graph"),
    ("islands52-lat.json", "synth auto file:{} --size 14KiB", "cost.time_s", "32.5 us", "at most 8.8 us"),
    ("fr.json", "record {}", "calls", "KeyError", "calls and sizes"),
    ("hot-recv.csv", "alltoall a100:2 --traffic {}", "baseline", "direct, 1.00 x", "best of four"),
    ("moe.csv", "alltoall a100:2 --traffic {}", "baseline", "direct, 1.03 x", "best of four"),
)
"""(file, command, member of its JSON, answer before, right answer)"""


def network(case: MachineCase, folder: Path = DATA) -> Topology:
    """Return the network that the file of `case` describes."""
    options = dict(case.options)
    if "machine" in options:
        options["machine"] = str(folder / options["machine"])
    return read_network(str(folder / case.name), MachineOptions(**options)).topology


def public_network(machine: Mapping[str, Any], folder: Path) -> Topology:
    """Return the network of a machine of public.json, whose file is written into `folder` unless it is shipped."""
    path = folder / ("machine.txt" if machine["form"] == "matrix" else "machine.xml")
    if machine["form"] == "file":
        path = DATA / machine["path"]
    else:
        path.write_bytes(described(machine))
    return read_network(str(path), MachineOptions(model=machine.get("model"), boxes=machine.get("boxes"))).topology


PUBLIC: list[dict[str, Any]] = json.loads((DATA / "public.json").read_text())["machines"]


def _rows(folder: Path) -> Iterator[tuple[str, ...]]:
    yield "file", "what", "before", "right: expected to bound", "now"
    for case in CASES:
        words = " ".join(f"{name} {value}" for name, value in case.options.items())
        right = f"{case.expected:.1f} to {case.bound:.1f}"
        try:
            found = network(case, folder)
        except ChoraleError as error:
            yield case.name, f"{case.collective} {words}", case.before, right, str(error)
            continue
        rates = [
            float(1 / bound_report(each, parse_collective(case.collective), None).bound.value)
            for each in (found.expected, found)
            if each is not None
        ]
        yield case.name, f"{case.collective} {words}", case.before, right, " to ".join(f"{rate:.1f}" for rate in rates)
    for name, command, member, before, right in COMMANDS:
        if (folder / name).exists():
            yield name, command, before, right, _answer(command.format(folder / name), member)


def _answer(command: str, member: str) -> str:
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors), contextlib.suppress(SystemExit):
        main([*command.split(), "--json"])
    if not out.getvalue():
        return " ".join(errors.getvalue().split())[:120]
    value = json.loads(out.getvalue())
    for key in member.split("."):
        value = value[key]
    if isinstance(value, list):
        return f"{len(value)} kinds"
    return f"{float(Fraction(value)) * 1e6:.2f} us" if member.endswith("time_s") else str(value)


def _public_rows(folder: Path) -> Iterator[tuple[str, ...]]:
    yield "machine", "ranks", "expected", "bound", "with switches", "measured busbw", "assumptions", "source"
    for machine in PUBLIC:
        topology = public_network(machine, folder)
        factor, report = bus_factor("allreduce", machine["ranks"]), bound_report(topology, ALLREDUCE, None)
        expected = "" if topology.expected is None else _busbw(factor, topology.expected)
        acting = "" if report.in_network is None else f"{factor * float(1 / report.in_network.value):.1f}"
        guesses = sum(fact.source == "guess" for fact in topology.assumptions)
        assumed = f"{len(topology.assumptions)}, {guesses} guessed"
        rates = expected, _busbw(factor, topology), acting, str(machine.get("measured", "none"))
        yield machine["name"], str(machine["ranks"]), *rates, assumed, machine["source"]


def _busbw(factor: float, topology: Topology) -> str:
    return f"{factor * float(1 / bound_report(topology, ALLREDUCE, None).bound.value):.1f}"


def _print(rows: Iterator[tuple[str, ...]]) -> None:
    for row in rows:
        sys.stdout.write(" | ".join(row) + "\n")


if __name__ == "__main__":
    import tempfile

    _print(_rows(Path(sys.argv[1]) if len(sys.argv) > 1 else DATA))
    with tempfile.TemporaryDirectory() as scratch:
        _print(_public_rows(Path(scratch)))
