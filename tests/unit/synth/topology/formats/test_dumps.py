"""Dumps of NCCL and recorded outputs of tools: what is read, passed over and refused, and bandwidths of parts."""

import itertools
import json
import re
from fractions import Fraction
from pathlib import Path

import pytest

from chorale.synth.bounds.lower_bound import lower_bound
from chorale.synth.collective import ALLGATHER
from chorale.synth.errors import InvalidInput
from chorale.synth.topology.formats.files import from_bytes, machine_of
from chorale.synth.topology.formats.gpu_matrices import is_gpu_matrix, read_gpu_matrix
from chorale.synth.topology.formats.ibnetdiscover import expanded_names, is_ibnetdiscover, read_fabric
from chorale.synth.topology.formats.machine_network import BoxNetwork, Machine, boxes_topology
from chorale.synth.topology.formats.rates import cpu_rate, nvlink_rate, pci_rate, xgmi_rate
from chorale.synth.topology.topology import Topology, is_automorphism
from tests.dumps import (
    cpu,
    gpu,
    nets,
    nic,
    nvlink,
    nvswitch_machine,
    pairs_machine,
    pci,
    system,
    to_nvswitches,
    xgmi_machine,
)
from tests.links import rates_of


def dumped(content: bytes) -> Machine:
    machine = machine_of(content, "file:dump.xml")
    assert machine is not None
    return machine


def test_gpus_are_ranked_and_numbered_nics_kept():
    content = system(
        cpu(0, gpu("0000:01:00.0", 7), nets((3, 10_000)), gpu("0000:02:00.0", 2)),
        cpu(1, nets((3, 10_000)), nets((1, -1)), gpu("0000:03:00.0", 5)),
    )
    machine = dumped(content)
    assert [gpu.bus for gpu in machine.gpus] == ["0000:02:00.0", "0000:03:00.0", "0000:01:00.0"]
    assert [(nic.number, nic.speed and nic.speed.physical) for nic in machine.nics] == [("1", 5 / 4), ("3", 5 / 4)]
    assert not machine.positions_only


def test_ports_share_the_pci_link_of_their_nic():
    machine = dumped(system(cpu(0, gpu("0000:01:00.0", 0), nic("0000:02:00.0", (0, 200_000), (1, 200_000)))))
    assert len({nic.device for nic in machine.nics}) == 1
    two = boxes_topology(machine, BoxNetwork(2), "file:dump.xml").expected
    assert two is not None
    assert lower_bound(two, ALLGATHER).value == Fraction(1, 2) / 24


def test_what_says_nothing_about_links_is_passed_over():
    unused = '<gpu dev="1" sm="80" gdr="1"/>'
    fused = '<nic><net name="a" speed="1000"/><net name="b" dev="0" net="0"/><gin name="c" dev="1"/></nic>'
    nvswitch = pci("0000:c1:00.0", kind="0x068000")
    content = system(
        cpu(0, gpu("0000:01:00.0", 0), pci("0000:02:00.0", unused, kind="0x030200"), nvswitch, fused, "<unknown/>")
    )
    machine = dumped(content)
    assert len(machine.gpus) == 1
    assert machine.nics == ()
    assert [host.name for host in machine.hosts] == ["cpu:0"]


def test_unknown_speeds_count_as_eight_gigatransfers_on_sixteen_lanes():
    for about in ("", ' link_speed="" link_width=""'):  # NCCL writes empty texts for what it cannot read
        bare = f'<pci busid="0000:01:00.0" class="0x030200"{about}><gpu sm="80" rank="0"/></pci>'
        pci = dumped(system(cpu(0, bare))).gpus[0].pci
        assert (pci.expected, pci.physical, pci.basis.source) == (12, Fraction("31.5"), "guess")


def test_bridges_of_one_address_are_several():
    """RCCL ships such a dump, topo_4p4h.xml, with a bridge for each of eight GPUs."""
    halves = [pci("0000:c5:00.0", gpu(f"0000:d{rank}:00.0", rank)) for rank in range(3)]
    names = [host.name.partition(":")[2] for host in dumped(system(cpu(0, *halves))).hosts]
    assert names == ["0", "0000:c5:00.0", "0000:c5:00.0_1", "0000:c5:00.0_2"]


def one(text: str) -> bytes:
    return system(cpu(0, text))


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"<system/>", "the topology dump has no GPU with a rank; dump on a machine with GPUs"),
        (system(cpu(0, gpu("0000:01:00.0", 0), gpu("0000:02:00.0", 0))),
         "ranks of GPUs in a topology dump must be unique, got 0; correct the file"),
        (system(cpu(0, gpu("0000:01:00.0", 0), gpu("0000:01:00.0", 1))),
         "bus ids of GPUs in a topology dump must be unique, got 0000:01:00.0; correct the file"),
        (one(gpu("here", 0)),
         "busid of <pci> in a topology dump must be a bus id, got 'here'; write it as 0000:3b:00.0"),
        (one(gpu("0000:01:00.0", 0).replace('rank="0"', 'rank="first"')),
         "rank of <gpu> in a topology dump must be a whole number from 0 to 2147483647, got 'first'; correct the file"),
        (one(gpu("0000:01:00.0", 0, '<nvlink target="0000:02:00.0" tclass="0x030200"/>')),
         "count of <nvlink> in a topology dump is missing in an element with target, tclass; correct the file"),
        (one(gpu("0000:01:00.0", 0, '<nvlink target="0000:02:00.0" tclass="0x030200" count="99999999999999"/>')),
         "count of <nvlink> in a topology dump must be a whole number from 1 to 1024, got '99999999999999'; "
         "correct the file"),
        (one(gpu("0000:01:00.0", 0, width="1000")),
         "link_width must be a number of lanes from 1 to 128, or 0, got 1000; correct the file"),
        (one(pci("0000:01:00.0", speed="17 GT/s")),
         "link_speed must be a speed of PCI Express, got '17 GT/s'; choose from 2.5, 5, 8, 16, 32, 64 GT/s"),
        (b"<system>" + b"<cpu/>" * 9000 + b"</system>",
         "a topology dump must have at most 8192 elements, got 9001; dump one machine"),
        (b'<!DOCTYPE system [<!ENTITY x "y">]><system>&x;</system>',
         "this XML file has a DOCTYPE or entities: DTDForbidden; remove the DOCTYPE"),
        (b"<system><cpu>", "the topology dump is not complete: an XML element without its end; "
         "save the complete file, such as that of NCCL_TOPO_DUMP_FILE"),
    ],
)  # fmt: skip
def test_errors(content, error):
    with pytest.raises(InvalidInput, match=f"^{re.escape(error)}$"):
        dumped(content)


def wires(topology: Topology) -> dict[str, Fraction]:
    """Return the rates that NCCL reckons with of all linked pairs, called "a - b"; they are alike both ways."""
    expected = topology.expected
    assert expected is not None
    found = rates_of(expected)
    assert len(found) == len(topology.links)
    assert all(found[dst, src] == bandwidth for (src, dst), bandwidth in found.items())
    return {f"{src} - {dst}": bandwidth for (src, dst), bandwidth in found.items() if src < dst}


def boxes_of(content: bytes, network: BoxNetwork) -> Topology:
    return boxes_topology(dumped(content), network, "file:dump.xml")


@pytest.mark.parametrize(("rails", "joint"), [(False, "net:0"), (True, "net:{}")])
def test_boxes_meet_in_one_switch_or_in_rails(rails, joint):
    topology = boxes_of(nvswitch_machine(), BoxNetwork(boxes=3, nic=Fraction(25, 2), rails=rails))
    assert topology.node_ids[:6] == ("0.0", "0.1", "0.2", "0.3", "1.0", "1.1")
    expected = {}
    for box, rank in itertools.product(range(3), range(4)):
        expected[f"{box}.{rank} - nvswitch:{box}"] = 240
        expected[f"{box}.{rank} - nic:{box}.{rank}"] = Fraction(25, 2)
        expected[f"{joint.format(rank)} - nic:{box}.{rank}"] = Fraction(25, 2)
    assert wires(topology) == expected


@pytest.mark.parametrize(("make", "rails"), [(nvswitch_machine, True), (pairs_machine, False), (xgmi_machine, False)])
def test_boxes_are_alike(make, rails):
    topology = boxes_of(make(), BoxNetwork(boxes=3, rails=rails))
    assert topology.is_eulerian
    (rotation,) = topology.automorphisms
    assert is_automorphism(topology, rotation)
    assert rotation[0] == topology.compute_count // 3


OLD_XEON = 'arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="63"'


def test_pci_switches_without_gpus_behind_nvlink():
    about = 'arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143"'
    gpus = gpu("0000:02:00.0", 0), gpu("0000:03:00.0", 1, width="8")
    switch = pci("0000:01:00.0", *gpus, speed="8 GT/s", width="8")
    content = system(cpu(0, switch, gpu("0000:04:00.0", 2), about=about))
    assert wires(from_bytes(content, "file:dump.xml")) == {
        "0.0 - pci:0.0000:01:00.0": 24,
        "0.1 - pci:0.0000:01:00.0": 12,
        "cpu:0.0 - pci:0.0000:01:00.0": 6,
        "0.2 - cpu:0.0": 24,
    }


def test_nics_go_to_the_nearest_gpu_and_are_shared_out():
    """Two NICs and two GPUs share a switch; a third NIC is below the other CPU, whose GPU is nearest."""
    gpus = [gpu(f"0000:0{bus}:00.0", rank, *to_nvswitches(12)) for rank, bus in enumerate((2, 3, 6))]
    nics = nic("0000:04:00.0", (0, 100_000)), nic("0000:05:00.0", (1, 400_000))
    far = pci("0000:07:00.0", nic("0000:08:00.0", (2, 400_000)), speed="8.0 GT/s PCIe")
    content = system(cpu(0, pci("0000:01:00.0", *gpus[:2], *nics)), cpu(1, gpus[2], far))
    found = wires(from_bytes(content, "file:dump.xml"))
    assert {name: rate for name, rate in found.items() if "nic" in name} == {
        "0.0 - nic:0.0": Fraction(25, 2),
        "0.1 - nic:0.1": 24,
        "0.2 - nic:0.2": 12,
    }


def test_a_nic_that_is_faster_than_a_slot_uses_the_slots_of_all_gpus_beside_it():
    """NCCL joins four NICs to one and writes the lanes of all."""
    gpus = [gpu(f"0000:0{rank}:00.0", rank, *to_nvswitches(12)) for rank in (1, 2)]
    joined = nic("0000:08:00.1", (0, 1_600_000)).replace('link_width="16"', 'link_width="64"')
    switch = pci("0000:07:00.0", *gpus, joined, width="64")
    found = wires(from_bytes(system(cpu(0, switch)), "file:dump.xml"))
    assert max(rate for name, rate in found.items() if "nic" in name) == 2 * 24


def test_nics_of_a_gb300_are_reached_over_c2c():
    """The slots of both GPUs carry 48 each, as much as a NIC of 800 Gbit/s, but share nothing with C2C."""
    c2c = '<c2c bw="44712" count="10"/>'
    gpus = [gpu(f"0000:0{rank}:00.0", rank, *to_nvswitches(18), c2c, about='sm="103"') for rank in range(2)]
    nics = [nic(f"0000:1{rank}:00.0", (rank, 800_000), speed="64.0 GT/s PCIe") for rank in range(2)]
    content = system(cpu(0, *gpus, *nics, about='arch="arm64"'))
    found = boxes_of(content, BoxNetwork(2, nvlink_boxes=1)).expected
    assert found is not None
    assert lower_bound(found, ALLGATHER).value == Fraction(1, 2) / (2 * 96)


@pytest.mark.parametrize(("bridge", "rate"), [("", 6), ('<pcilink target="0000:07:00.0"/>', 24)])
def test_switches_that_are_parts_of_one_device_need_no_cpu(bridge, rate):
    near = pci("0000:01:00.0", bridge, gpu("0000:02:00.0", 0, nvlink("0000:03:00.0", 4)), width="4")
    far = pci("0000:07:00.0", nic("0000:08:00.0", (0, 400_000)), width="4")
    content = system(cpu(0, near, far), cpu(1, gpu("0000:03:00.0", 1, nvlink("0000:02:00.0", 4))))
    assert wires(from_bytes(content, "file:dump.xml"))["0.0 - nic:0.0"] == rate
    apart = system(cpu(0, near.replace("<nvlink", "<other"), far, gpu("0000:03:00.0", 1)))
    assert ("pci:0.0000:01:00.0 - pci:0.0000:07:00.0" in rates_between(apart)) is bool(bridge)


def rates_between(content: bytes) -> set[str]:
    return {f"{src} - {dst}" for src, dst in rates_of(from_bytes(content, "file:dump.xml"))}


def test_chip_to_chip_links_are_a_way_between_gpus():
    c2c = '<c2c bw="45000" count="10"/>'
    gpus = [gpu(f"0000:0{rank + 1}:00.0", rank, c2c, about='sm="90"') for rank in range(2)]
    content = system(*(cpu(rank, each, about='arch="arm64"') for rank, each in enumerate(gpus)))
    box = from_bytes(content, "file:dump.xml")
    assert box.expected is not None
    rates = sorted(link.bandwidth for link in box.expected.links)
    assert rates == [6, 6, 24, 24, 24, 24, 450, 450, 450, 450]
    assert sorted(link.bandwidth for link in box.links)[0] == Fraction("31.5")


def test_one_way_nvlinks_stay_one_way():
    links = [nvlink(f"0000:0{(rank + 1) % 3 + 1}:00.0", 2) for rank in range(3)]
    gpus = [gpu(f"0000:0{rank + 1}:00.0", rank, link) for rank, link in enumerate(links)]
    box = from_bytes(system(cpu(0, *gpus)), "file:dump.xml")
    assert [(link.src, link.dst, link.bandwidth) for link in box.links] == [(2, 0, 50), (0, 1, 50), (1, 2, 50)]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (
            pairs_machine(),
            {"0.0 - 0.1": 240, "0.2 - 0.3": 240, "cpu:0.0 - nic:0.0": Fraction(25, 2)}
            | {f"cpu:0.{one} - cpu:0.{other}": 24 for one, other in itertools.combinations(range(4), 2)}
            | {f"0.{rank} - cpu:0.{rank}": 24 for rank in range(4)},
        ),
        (xgmi_machine(), {"0.0 - 0.1": 144, "0.1 - 0.2": 36, "0.0 - nic:0.0": Fraction(25, 2)}),
        (  # links to GPUs outside of the dump
            one(gpu("0000:01:00.0", 0, nvlink("0000:09:00.0", 2)) + gpu("0000:02:00.0", 1, nvlink("0000:09:00.0", 2))),
            {"0.0 - cpu:0.0": 24, "0.1 - cpu:0.0": 24},
        ),
        (  # a NIC below another CPU is as fast as the link between them
            system(
                cpu(0, *(gpu(f"0000:0{rank}:00.0", rank, *to_nvswitches(12)) for rank in range(2)), about=OLD_XEON),
                cpu(1, nic("0000:08:00.0", (2, 400_000)), about=OLD_XEON),
            ),
            {"0.0 - nic:0.2": 6, "0.0 - nvswitch:0": 240, "0.1 - nvswitch:0": 240},
        ),
    ],
    ids=["pairs", "xgmi", "outside", "other CPU"],
)
def test_what_is_linked_with_what(content, expected):
    assert wires(from_bytes(content, "file:dump.xml")) == expected


def test_a_file_that_only_places_devices():
    """As clouds ship it: classes tell GPUs and NICs, links are PCI only."""
    inside = [pci(f"000{bus}:00:00.0", kind=kind) for bus, kind in enumerate(("0x030200", "0x020700", "0x030200"))]
    content = system(cpu(0, pci("ffff:ff:01.0", *inside), about='arch="x86_64" vendor="AuthenticAMD" familyid="23"'))
    assert dumped(content).positions_only
    assert wires(from_bytes(content, "file:hints.xml")) == {
        "0.0 - pci:0.ffff:ff:01.0": 24,
        "0.1 - pci:0.ffff:ff:01.0": 24,
        "cpu:0.0 - pci:0.ffff:ff:01.0": 24,
        "nic:0.0 - pci:0.ffff:ff:01.0": 24,
    }


@pytest.mark.parametrize(
    ("content", "network", "error"),
    [
        (xgmi_machine(), BoxNetwork(boxes=0), "a network must have at least one box, got 0; use --boxes 1"),
        (xgmi_machine(), BoxNetwork(boxes=10**6),
         "a topology must have at most 1048576 nodes, got file:dump.xml; choose a smaller network"),
        (system(cpu(0, gpu("0000:01:00.0", 0), gpu("0000:02:00.0", 1))), BoxNetwork(boxes=2),
         "boxes without NICs cannot be connected: 2 boxes; use one box"),
        (system(cpu(0, gpu("0000:01:00.0", 0))), BoxNetwork(),
         "a network must have at least two GPUs, got 1 in file:dump.xml; use --boxes"),
    ],
)  # fmt: skip
def test_errors_of_boxes(content, network, error):
    with pytest.raises(InvalidInput, match=f"^{re.escape(error)}$"):
        boxes_of(content, network)


@pytest.mark.parametrize(
    ("capability", "bandwidth"),
    [(50, "20"), (60, "18"), (70, "20"), (75, "20"), (80, "20"), (86, "12"), (89, "20"), (90, "20.6"), (100, "40.1"),
     (103, "40.1"), (107, "31.2")],
)  # fmt: skip
def test_nvlink(capability, bandwidth):
    assert nvlink_rate(capability).expected == Fraction(bandwidth)
    assert (nvlink_rate(capability).basis.source == "guess") is (capability > 103)


@pytest.mark.parametrize(
    ("architecture", "bandwidth"),
    [("gfx90a:sramecc+", 36), ("910", 36), ("gfx942", 48), ("gfx950", 48), ("gfx908", 24), ("908", 24), ("", 24)],
)
def test_xgmi(architecture, bandwidth):
    assert xgmi_rate(architecture).expected == bandwidth


@pytest.mark.parametrize(
    ("speed", "width", "bandwidth"),
    [("2.5 GT/s PCIe", 1, Fraction(3, 16)), ("5.0 GT/s PCIe", 16, 6), ("8 GT/s", 16, 12), ("16.0 GT/s PCIe", 8, 12),
     ("32 GT/s", 16, 48), ("64.0 GT/s PCIe", 16, 96), ("", 0, 12), ("Unknown", 255, 12), ("Unknown speed", 4, 3)],
)  # fmt: skip
def test_pci(speed, width, bandwidth):
    assert pci_rate(speed, width).expected == bandwidth
    for wrong in ("16", "16 GB/s", "1e3 GT/s", "16.5 GT/s", "-8 GT/s"):
        with pytest.raises(InvalidInput, match="link_speed must be a speed of PCI Express"):
            pci_rate(wrong, 16)


@pytest.mark.parametrize(
    ("rate", "physical"),
    [(nvlink_rate(100), 50), (nvlink_rate(90), 25), (nvlink_rate(80), 25), (nvlink_rate(86), Fraction("14.0625")),
     (pci_rate("8 GT/s", 16), Fraction("15.75")), (pci_rate("16 GT/s", 16), Fraction("31.5")),
     (pci_rate("32 GT/s", 16), 63), (pci_rate("2.5 GT/s PCIe", 1, is_bridge=True), Fraction("31.5")),
     (xgmi_rate("gfx90a"), 50), (xgmi_rate("gfx942"), 64), (xgmi_rate("gfx950"), Fraction("76.8"))],
)  # fmt: skip
def test_physical_rates_are_above_those_of_the_libraries(rate, physical):
    assert rate.physical == physical > rate.expected


AMD, INTEL = "AuthenticAMD", "GenuineIntel"


@pytest.mark.parametrize(
    ("architecture", "vendor", "family", "model", "bandwidth"),
    [("x86_64", AMD, 23, 49, 16), ("x86_64", AMD, 25, 1, 24), ("x86_64", AMD, 26, 2, 32), ("x86_64", AMD, 175, 1, 24),
     ("x86_64", INTEL, 6, 63, 6), ("x86_64", INTEL, 6, 85, 10), ("x86_64", INTEL, 6, 143, 22),
     ("x86_64", INTEL, 6, 207, 40), ("x86_64", INTEL, 6, 173, 40), ("x86_64", INTEL, 15, 207, 6),
     ("ppc64", "", 0, 0, 32), ("arm64", "", 0, 0, 6), ("riscv", "", 0, 0, 5000)],
)  # fmt: skip
def test_cpus(architecture, vendor, family, model, bandwidth):
    assert cpu_rate({"arch": architecture, "vendor": vendor}, family, model).expected == bandwidth


DATA = Path(__file__).parents[4] / "data" / "fabric_tools"


def read(name: str) -> Topology:
    return from_bytes((DATA / name).read_bytes(), f"file:{name}")


def from_gpu_matrix(text: str, model: str | None = None) -> Topology:
    return boxes_topology(read_gpu_matrix(text, model), BoxNetwork(), "a")


def from_ibnetdiscover(text: str) -> Topology:
    return read_fabric(text).topology("a")


def test_eighteen_nvlinks_of_every_pair_are_one_switch() -> None:
    topology = read("nvidia-smi-topo-h100.txt")
    assert (topology.compute_count, topology.switch_count, topology.bandwidth_unit) == (8, 1, "GB/s")
    assert rates_of(topology)["0.0", "nvswitch:0"] == rates_of(topology)["nvswitch:0", "0.7"] == 18 * 25
    text = (DATA / "nvidia-smi-topo-h100.txt").read_text()
    assert rates_of(from_gpu_matrix(text, "NVIDIA B200"))["0.0", "nvswitch:0"] == 18 * 50


def test_what_nccl_wrote_of_one_gpu_is_joined_by_its_nic() -> None:
    machine = machine_of((DATA / "nccl-topology-one-h100.xml").read_bytes(), "a")
    assert machine is not None
    topology = boxes_topology(machine, BoxNetwork(boxes=4), "a")
    assert (topology.compute_count, topology.switch_count) == (4, 5)
    assert min(rates_of(topology).values()) == Fraction(10, 8)  # the NIC says 10,000 Mbit/s
    with pytest.raises(InvalidInput, match="at least two GPUs"):
        read("nccl-topology-one-h100.xml")


def test_gpus_on_pci_express() -> None:
    topology = read("rocm-smi-topo-pcie.txt")
    assert (topology.compute_count, topology.switch_count) == (4, 1)
    assert set(rates_of(topology).values()) == {Fraction("31.5")}
    rows = ["GPU0 X PIX SYS SYS", "GPU1 PIX X SYS SYS", "GPU2 SYS SYS X NODE", "GPU3 SYS SYS NODE X"]
    two_sockets = from_gpu_matrix("\n".join(["GPU0 GPU1 GPU2 GPU3", *rows]))
    assert ("cpu:0.0", "cpu:0.1") in rates_of(two_sockets)
    assert ("0.3", "cpu:0.1") in rates_of(two_sockets)


V100 = """        GPU0    GPU1    GPU2    mlx5_0  CPU Affinity
GPU0     X      NV1     NV2     PIX     0-19,40-59
GPU1    NV1      X      NV1     SYS     20-39
GPU2    NV2     NV1      X      SYS     20-39
mlx5_0  PIX     SYS     SYS      X
"""
PAIR = "\tGPU0\tGPU1\tNIC0CPU Affinity\tNUMA Affinity\nGPU0\t X \tNV4\tPXB\t0-31\t0\nGPU1\tNV4\t X \tSYS\t0-31\t0\n"
THREE = "\tGPU0\tGPU1\tGPU2\nGPU0\tX\tNV18\tNV18\nGPU1\tNV18\tX\tNV18\nGPU2\tNV18\tNV18\tX\n"
PERMISSIONS = " \tGPU0\tGPU1\n GPU0\tX\tOK\n GPU1\tOK\tX\n\n"


@pytest.mark.parametrize(
    ("text", "first", "second"),
    [
        ("\n".join(f"> {line}" for line in V100.splitlines()), 25, 50),
        ("\n".join(f"[10:00:00] host1: {line}" for line in V100.splitlines()), 25, 50),
        (f"GPU 0: NVIDIA GeForce RTX 3090\n{PAIR}", 56.25, None),
        (f"GPU 0: NVIDIA A40\n\x1b[4m{PAIR.splitlines()[0]}\x1b[0m\n" + PAIR.partition("\n")[2], 56.25, None),
        (f"GPU 0: NVIDIA A30\n{PERMISSIONS}{PAIR}", 100, None),
        (f"NVIDIA H20\n{THREE}", 450, 450),
        (f"| 0  NVIDIA GB200  On |\n{THREE}", 900, 900),
    ],
)
def test_matrices_in_reports_have_the_rates_of_the_model_named_there(text, first, second):
    assert is_gpu_matrix(text)
    topology = from_gpu_matrix(text)
    found = rates_of(topology)
    ends = ("nvswitch:0", "nvswitch:0") if topology.switch_count else ("0.1", "0.2")
    assert [found.get(("0.0", end)) for end in ends] == [first, second]


def matrix(cell: str, count: int, head: str = "") -> str:
    rows = [f"GPU{a} " + " ".join("X" if a == b else cell for b in range(count)) for a in range(count)]
    return "\n".join([head, " ".join(f"GPU{gpu}" for gpu in range(count)), *rows])


@pytest.mark.parametrize(
    ("text", "is_guess"),
    [
        (matrix("NODE", 4, "GPU 0: NVIDIA H100 80GB HBM3"), True),  # its NVLinks are off, or the tool hides them
        (matrix("NODE", 4, "GPU 0: Tesla V100-SXM2-16GB"), True),
        (matrix("NODE", 4, "GPU 0: NVIDIA L40S\n$ nvidia-smi topo -mp"), True),
        (matrix("NODE", 4, "GPU 0: NVIDIA H100 PCIe"), False),
        (matrix("NODE", 4, "GPU 0: NVIDIA H200 NVL"), False),
        (matrix("NODE", 4, "GPU 0: Tesla V100-PCIE-16GB"), False),
        (matrix("NODE", 4, "GPU 0: Tesla T4"), False),
        (matrix("NODE", 4, "GPU 0: NVIDIA A30"), False),
    ],
)
def test_nvlinks_that_a_matrix_does_not_show(text, is_guess):
    assert from_gpu_matrix(text).is_guessed() is is_guess


def test_a_report_may_show_a_machine_with_and_without_its_nvlinks():
    both = f"NVIDIA H100\n{matrix('NV18', 4)}\n$ nvidia-smi topo -mp\n{matrix('NODE', 4)}"
    topology = from_gpu_matrix(both)
    assert (rates_of(topology)["0.0", "nvswitch:0"], topology.is_guessed()) == (450, False)
    with pytest.raises(InvalidInput, match="2 matrices that differ"):
        from_gpu_matrix(both.replace("NODE", "NV12"))


def test_gpus_with_fewer_nvlinks_than_their_relatives():
    """Three of eight H800 that a container sees: eight NVLinks of each to a switch, not eight for each pair."""
    found = rates_of(from_gpu_matrix(matrix("NV8", 3, "GPU 0: NVIDIA H800")))
    assert found["0.0", "nvswitch:0"] == 8 * 25


@pytest.mark.parametrize(
    ("links", "model", "rate"), [(True, None, 64), (True, "MI355X", Fraction("76.8")), (False, "MI300A", 128)]
)
def test_amd_smi_as_json_of_both_kinds(links, model, rate):
    def cells(gpu: int) -> dict[str, object]:
        others = [other for other in range(4) if other != gpu]
        if links:
            known = {"weight": 15, "link_type": "XGMI", "num_hops": 1, "bandwidth": "50000-50000"}
            return {"gpu": gpu, "links": [{"gpu": other} | known for other in others]}
        tables = {"weight": 15, "hops": 1, "link_type": "XGMI"}
        return {"gpu": gpu} | {name: {f"gpu_{other}": cell for other in others} for name, cell in tables.items()}

    topology = from_gpu_matrix(json.dumps([cells(gpu) for gpu in range(4)]), model)
    assert (topology.compute_count, set(rates_of(topology).values())) == (4, {rate})
    assert topology.is_guessed() is (model is None)


def test_gateways_are_no_ranks_and_hosts_can_be_chosen() -> None:
    lines = ['Switch\t36 "S-aa"\t\t# "leaf" base port 0 lid 1 lmc 0']
    names = {"b1": "gpu1 mlx5_0", "b2": "gpu2 mlx5_0", "b3": "skyway-gw1 mlx5_0", "b4": "gpu3 mlx5_0"}
    names["b5"] = "headnode1 mlx5_0"
    lines += [
        f'[{port}]\t"H-{guid}"[1](1)\t\t# "{name}" lid 1 4xHDR' for port, (guid, name) in enumerate(names.items(), 1)
    ]
    lines += ['[9]\t"R-c1"[1](1)\t\t# "router" lid 9 4xHDR', 'Rt\t2 "R-c1"\t\t# "router"']
    lines += [f'Ca\t1 "H-{guid}"\t\t# "{name}"' for guid, name in names.items()]
    fabric = read_fabric("\n".join(lines))
    topology = fabric.topology("a")
    assert topology.node_ids == ("gpu1", "gpu2", "gpu3", "S_aa")
    assert any("skyway_gw1" in fact.value and fact.source == "guess" for fact in topology.assumptions)
    assert topology.is_guessed()
    forms = [line.replace("4xHDR", "4xHDR s=4 w=2 v=4").replace("]\t", "][ext 7]\t") for line in lines]
    assert rates_of(from_ibnetdiscover("\n".join(forms))) == rates_of(topology)  # of --full, and of a chassis
    same = "\n".join(lines).replace("gpu2 mlx", "gpu1 mlx").replace("gpu3 mlx", "gpu1 mlx")
    assert from_ibnetdiscover(same).node_ids == ("gpu1", "H_b2", "H_b4", "S_aa")
    assert fabric.topology("a", ("gpu3", "gpu1")).node_ids[:2] == ("gpu3", "gpu1")
    with pytest.raises(InvalidInput, match="--nodes must name hosts of the fabric, got gpu9"):
        fabric.topology("a", ("gpu9",))


def test_a_mesh_of_xgmi() -> None:
    topology = read("rocm-smi-topo-xgmi.txt")
    assert (topology.compute_count, topology.switch_count, len(topology.links)) == (8, 0, 56)
    assert set(rates_of(topology).values()) == {64}


def test_an_infiniband_network() -> None:
    topology = read("ibnetdiscover-voltaire.txt")
    assert (topology.compute_count, topology.switch_count, topology.bandwidth_unit) == (4, 2, "Gbit/s")
    found = rates_of(topology)
    big, small = "S_005442ba00003080", "S_0008f10400410015"
    assert found["H_0008f10403961354", big] == 4 * 2
    assert found["H_0008f10403960558", big] == 4 * 2 + 2  # two cables, one of which is narrow at one end
    assert found[big, small] == found[small, big] == 4 * 2 + 2


def test_adapters_of_a_host_are_one_rank() -> None:
    text = 'Switch\t36 "S-aa"\t\t# "leaf" base port 0 lid 1 lmc 0\n'
    for port, (guid, name) in enumerate((("b1", "node1 HCA-1"), ("b2", "node1 HCA-2"), ("c1", "node2 mlx5_0")), 1):
        text += f'[{port}]\t"H-{guid}"[1](1)\t\t# "{name}" lid 1 4xHDR\n'
    for guid, name in (("b1", "node1 HCA-1"), ("b2", "node1 HCA-2"), ("c1", "node2 mlx5_0")):
        text += f'Ca\t1 "H-{guid}"\t\t# "{name}"\n'
    topology = from_ibnetdiscover(text)
    assert topology.node_ids == ("node1", "node2", "S_aa")
    assert rates_of(topology)["node1", "S_aa"] == 400


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("GPU0 GPU1\nGPU0 X NV4\n", "no complete row of GPU1"),
        ("GPU0 GPU1\nGPU0 X NV4\nGPU1 NV2 X\n", "GPU0 and GPU1 differ"),
        ("GPU0\nGPU0 X\n", "a single GPU"),
        *((matrix(cell, 2), "unknown connection of GPU0 and GPU1") for cell in ("MX", "?", "-", "N/A")),
    ],
)
def test_what_is_no_matrix_is_refused(text: str, rule: str) -> None:
    with pytest.raises(InvalidInput, match=rule):
        from_gpu_matrix(text)


def test_other_text_is_neither() -> None:
    for text in ("", "hello", "<system/>", '{"format": "chorale-topology/1"}'):
        assert not is_gpu_matrix(text)
        assert not is_ibnetdiscover(text)
    leaf = 'Switch 1 "S-aa" # "leaf"\n'
    for text, rule in (
        (leaf + '[1] "H-bb"[1](1) # "x" lid 1 4xABC\n', "unknown speed of an InfiniBand link: ABC"),
        (leaf + '[1] "H-bb"[1](1) # "x" lid 1 4x???\n', r"unknown speed of an InfiniBand link: \?\?\?"),
        (leaf, "this output of ibnetdiscover has fewer than two hosts"),
    ):
        with pytest.raises(InvalidInput, match=rule):
            from_ibnetdiscover(text)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ["n1"]),
        ("n[1-3,7],login", ["n1", "n2", "n3", "n7", "login"]),
        ("gpu[008-011]", ["gpu008", "gpu009", "gpu010", "gpu011"]),
        ("rack[1-2]-x,y.z", ["rack1-x", "rack2-x", "y.z"]),
        ("", []),
    ],
)
def test_lists_of_hosts(text, names):
    assert expanded_names(text) == names


@pytest.mark.parametrize(
    "text", ["n[1-", "n[a-b]", "n[1-9999999]", "n 1", "[", "n[1--2]", f"n[1-{'9' * 5000}]", f"{'n' * 256}[1-2]"]
)
def test_lists_of_hosts_that_are_none_are_refused(text):
    with pytest.raises(InvalidInput):
        expanded_names(text)
