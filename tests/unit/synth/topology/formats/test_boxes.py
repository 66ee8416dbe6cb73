"""From dumps to networks: what is linked with what, and at which bandwidth."""

from fractions import Fraction

import pytest

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.automorphism import is_automorphism
from chorale.synth.topology.formats.files import from_bytes, machine_of
from chorale.synth.topology.formats.machine_network import BoxNetwork, boxes_topology
from chorale.synth.topology.topology import Topology
from tests.dumps import cpu, gpu, nic, nvlink, nvswitch_machine, pairs_machine, pci, system, to_nvswitches, xgmi_machine
from tests.reference.allgather_by_flows import allgather_by_flows


def topology_of(content: bytes, network: BoxNetwork) -> Topology:
    machine = machine_of(content, "file:dump.xml")
    assert machine is not None
    return boxes_topology(machine, network, "file:dump.xml")


def wires(topology: Topology) -> dict[str, Fraction]:
    """Return the rates that NCCL reckons with of all linked pairs, called "a - b"; they are alike both ways."""
    expected = topology.expected
    assert expected is not None
    ids = topology.node_ids
    found = {(ids[link.src], ids[link.dst]): link.bandwidth for link in expected.links}
    assert len(found) == len(topology.links)
    assert all(found[dst, src] == bandwidth for (src, dst), bandwidth in found.items())
    return {f"{src} - {dst}": bandwidth for (src, dst), bandwidth in found.items() if src < dst}


def test_gpus_behind_nvswitches_have_nics_and_nothing_else():
    box = from_bytes(nvswitch_machine(), "file:dump.xml")
    assert (box.compute_count, box.bandwidth_unit) == (4, "GB/s")
    assert wires(box) == {
        **{f"0.{rank} - nvswitch:0": 240 for rank in range(4)},
        **{f"0.{rank} - nic:0.{rank}": 24 for rank in range(4)},
    }


def test_boxes_meet_in_one_switch():
    topology = topology_of(nvswitch_machine(), BoxNetwork(boxes=3, nic=Fraction(25, 2)))
    assert topology.node_ids[:6] == ("0.0", "0.1", "0.2", "0.3", "1.0", "1.1")
    inside = {f"{box}.{rank} - nvswitch:{box}": 240 for box in range(3) for rank in range(4)}
    nics = {f"{box}.{rank} - nic:{box}.{rank}": Fraction(25, 2) for box in range(3) for rank in range(4)}
    joint = {f"net:0 - nic:{box}.{rank}": Fraction(25, 2) for box in range(3) for rank in range(4)}
    assert wires(topology) == {**inside, **nics, **joint}


def test_boxes_meet_in_rails():
    topology = topology_of(nvswitch_machine(), BoxNetwork(boxes=3, rails=True))
    joint = {name: rate for name, rate in wires(topology).items() if "net:" in name}
    assert joint == {f"net:{rank} - nic:{box}.{rank}": 24 for box in range(3) for rank in range(4)}


@pytest.mark.parametrize("make", [nvswitch_machine, pairs_machine, xgmi_machine])
@pytest.mark.parametrize("rails", [False, True])
def test_boxes_are_alike(make, rails):
    topology = topology_of(make(), BoxNetwork(boxes=3, rails=rails))
    assert topology.is_eulerian
    (rotation,) = topology.automorphisms
    assert is_automorphism(topology, rotation)
    assert rotation[0] == topology.compute_count // 3


def test_optimum_of_a_fabric_from_a_dump():
    """Four boxes of four GPUs: one box receives 4 x 24 GB/s, one GPU 240 + 24."""
    expected = topology_of(nvswitch_machine(), BoxNetwork(boxes=4)).expected
    assert expected is not None
    found = allgather_by_flows(expected)
    assert found.algbw == min(Fraction(264 * 16, 15), Fraction(96 * 4, 3))


def test_pairs_of_gpus_need_cpus():
    box = from_bytes(pairs_machine(), "file:dump.xml")
    cpus = {f"cpu:0.{one} - cpu:0.{other}": 24 for one in range(4) for other in range(one + 1, 4)}
    expected = {"0.0 - 0.1": 240, "0.2 - 0.3": 240, "cpu:0.0 - nic:0.0": Fraction(25, 2), **cpus}
    assert wires(box) == {**expected, **{f"0.{rank} - cpu:0.{rank}": 24 for rank in range(4)}}


def test_xgmi_joins_gpus_and_a_nic_stands_beside_one():
    box = from_bytes(xgmi_machine(), "file:dump.xml")
    assert wires(box) == {"0.0 - 0.1": 144, "0.1 - 0.2": 36, "0.0 - nic:0.0": Fraction(25, 2)}


def test_pci_switches_without_gpus_behind_nvlink():
    speeds = {"speed": "8 GT/s", "width": "8"}
    content = system(
        cpu(
            0,
            pci("0000:01:00.0", gpu("0000:02:00.0", 0), gpu("0000:03:00.0", 1, width="8"), **speeds),
            gpu("0000:04:00.0", 2),
            about='arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143"',
        )
    )
    assert wires(from_bytes(content, "file:dump.xml")) == {
        "0.0 - pci:0.0000:01:00.0": 24,
        "0.1 - pci:0.0000:01:00.0": 12,
        "cpu:0.0 - pci:0.0000:01:00.0": 6,
        "0.2 - cpu:0.0": 24,
    }


def test_nics_go_to_the_nearest_gpu_and_are_shared_out():
    """Two NICs and two GPUs share a switch; a third NIC is below the other CPU, whose GPU is nearest."""
    content = system(
        cpu(
            0,
            pci(
                "0000:01:00.0",
                gpu("0000:02:00.0", 0, *to_nvswitches(12)),
                gpu("0000:03:00.0", 1, *to_nvswitches(12)),
                nic("0000:04:00.0", (0, 100_000)),
                nic("0000:05:00.0", (1, 400_000)),
            ),
        ),
        cpu(1, gpu("0000:06:00.0", 2, *to_nvswitches(12)), pci("0000:07:00.0", nic("0000:08:00.0", (2, 400_000)),
            speed="8.0 GT/s PCIe")),
    )  # fmt: skip
    found = wires(from_bytes(content, "file:dump.xml"))
    assert {name: rate for name, rate in found.items() if "nic" in name} == {
        "0.0 - nic:0.0": Fraction(25, 2),
        "0.1 - nic:0.1": 24,
        "0.2 - nic:0.2": 12,
    }


def test_a_nic_below_another_cpu_is_as_fast_as_the_way_there():
    content = system(
        cpu(0, gpu("0000:02:00.0", 0, *to_nvswitches(12)), gpu("0000:03:00.0", 1, *to_nvswitches(12)), about=OLD_XEON),
        cpu(1, nic("0000:08:00.0", (2, 400_000)), about=OLD_XEON),
    )
    assert wires(from_bytes(content, "file:dump.xml"))["0.0 - nic:0.2"] == 6


OLD_XEON = 'arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="63"'


def test_chip_to_chip_links_are_a_way_between_gpus():
    about = 'arch="arm64"'
    c2c = '<c2c bw="45000" count="10"/>'
    content = system(
        cpu(0, gpu("0000:01:00.0", 0, c2c, about='sm="90"'), about=about),
        cpu(1, gpu("0000:02:00.0", 1, c2c, about='sm="90"'), about=about),
    )
    box = from_bytes(content, "file:dump.xml")
    assert box.expected is not None
    rates = sorted(link.bandwidth for link in box.expected.links)
    assert rates == [6, 6, 24, 24, 24, 24, 450, 450, 450, 450]
    assert sorted(link.bandwidth for link in box.links)[0] == Fraction("31.5")


def test_one_way_nvlinks_stay_one_way():
    content = system(
        cpu(
            0,
            gpu("0000:01:00.0", 0, nvlink("0000:02:00.0", 2)),
            gpu("0000:02:00.0", 1, nvlink("0000:03:00.0", 2)),
            gpu("0000:03:00.0", 2, nvlink("0000:01:00.0", 2)),
        )
    )
    box = from_bytes(content, "file:dump.xml")
    assert [(link.src, link.dst, link.bandwidth) for link in box.links] == [(2, 0, 50), (0, 1, 50), (1, 2, 50)]


def test_links_to_gpus_outside_of_the_dump_are_passed_over():
    content = system(
        cpu(0, gpu("0000:01:00.0", 0, nvlink("0000:09:00.0", 2)), gpu("0000:02:00.0", 1, nvlink("0000:09:00.0", 2)))
    )
    assert wires(from_bytes(content, "file:dump.xml")) == {"0.0 - cpu:0.0": 24, "0.1 - cpu:0.0": 24}


def test_a_file_that_only_places_devices():
    """As clouds ship it: classes tell GPUs and NICs, links are PCI only."""
    inside = [pci(f"000{bus}:00:00.0", kind=kind) for bus, kind in enumerate(("0x030200", "0x020700", "0x030200"))]
    content = system(cpu(0, pci("ffff:ff:01.0", *inside), about='arch="x86_64" vendor="AuthenticAMD" familyid="23"'))
    machine = machine_of(content, "file:hints.xml")
    assert machine is not None
    assert machine.positions_only
    assert wires(boxes_topology(machine, BoxNetwork(), "file:hints.xml")) == {
        "0.0 - pci:0.ffff:ff:01.0": 24,
        "0.1 - pci:0.ffff:ff:01.0": 24,
        "cpu:0.0 - pci:0.ffff:ff:01.0": 24,
        "nic:0.0 - pci:0.ffff:ff:01.0": 24,
    }


@pytest.mark.parametrize(
    ("content", "network", "error"),
    [
        (xgmi_machine(), BoxNetwork(boxes=0), "a network must have at least one box, got 0; use --boxes 1"),
        (xgmi_machine(), BoxNetwork(boxes=10**6), "a topology must have at most 1048576 nodes, got file:dump.xml; "
         "choose a smaller network"),
        (system(cpu(0, gpu("0000:01:00.0", 0), gpu("0000:02:00.0", 1))), BoxNetwork(boxes=2),
         "boxes without NICs cannot be connected: 2 boxes; use one box"),
        (system(cpu(0, gpu("0000:01:00.0", 0))), BoxNetwork(),
         "a network must have at least two GPUs, got 1 in file:dump.xml; use --boxes"),
    ],
)  # fmt: skip
def test_errors(content, network, error):
    with pytest.raises(InvalidInput) as caught:
        topology_of(content, network)
    assert str(caught.value) == error
