"""Networks from outputs of tools as they were recorded; tests/data/fabric_tools says where each comes from."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from pathlib import Path

import pytest

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.formats.files import from_bytes, machine_of
from chorale.synth.topology.formats.gpu_matrices import is_gpu_matrix, read_gpu_matrix
from chorale.synth.topology.formats.ibnetdiscover import is_ibnetdiscover, read_fabric
from chorale.synth.topology.formats.machine_network import BoxNetwork, boxes_topology
from chorale.synth.topology.topology import Topology

DATA = Path(__file__).parents[4] / "data" / "fabric_tools"


def read(name: str) -> Topology:
    return from_bytes((DATA / name).read_bytes(), f"file:{name}")


def from_gpu_matrix(text: str, spec: str, model: str | None = None) -> Topology:
    return boxes_topology(read_gpu_matrix(text, model), BoxNetwork(), spec)


def from_ibnetdiscover(text: str, spec: str) -> Topology:
    return read_fabric(text).topology(spec)


def rates(topology: Topology) -> dict[tuple[str, str], Fraction]:
    """Return the bandwidth from node to node, parallel links together."""
    total: Counter[tuple[str, str]] = Counter()
    links, names = topology.links, topology.node_ids
    for src, dst, kind in zip(links.src, links.dst, links.bandwidth_class, strict=True):
        total[names[src], names[dst]] += links.bandwidths[kind]
    return dict(total)


def test_eighteen_nvlinks_of_every_pair_are_one_switch() -> None:
    topology = read("nvidia-smi-topo-h100.txt")
    assert (topology.compute_count, topology.switch_count, topology.bandwidth_unit) == (8, 1, "GB/s")
    assert rates(topology)["0.0", "nvswitch:0"] == rates(topology)["nvswitch:0", "0.7"] == 18 * 25
    text = (DATA / "nvidia-smi-topo-h100.txt").read_text()
    assert rates(from_gpu_matrix(text, "a", "NVIDIA B200"))["0.0", "nvswitch:0"] == 18 * 50


def test_what_nccl_wrote_of_one_gpu_is_joined_by_its_nic() -> None:
    machine = machine_of((DATA / "nccl-topology-one-h100.xml").read_bytes(), "a")
    assert machine is not None
    topology = boxes_topology(machine, BoxNetwork(boxes=4), "a")
    assert (topology.compute_count, topology.switch_count) == (4, 5)
    assert min(rates(topology).values()) == Fraction(10, 8)  # the NIC says 10,000 Mbit/s
    with pytest.raises(InvalidInput, match="at least two GPUs"):
        read("nccl-topology-one-h100.xml")


def test_pairs_with_links_of_their_own() -> None:
    rows = ["GPU0 X NV4 NV4 NV4", "GPU1 NV4 X NV4 NV4", "GPU2 NV4 NV4 X NV4", "GPU3 NV4 NV4 NV4 X"]
    topology = from_gpu_matrix("\n".join(["GPU0 GPU1 GPU2 GPU3", *rows]), "a")
    assert topology.switch_count == 0
    assert set(rates(topology).values()) == {100}


def test_gpus_on_pci_express() -> None:
    topology = read("rocm-smi-topo-pcie.txt")
    assert (topology.compute_count, topology.switch_count) == (4, 1)
    assert set(rates(topology).values()) == {Fraction("31.5")}
    rows = ["GPU0 X PIX SYS SYS", "GPU1 PIX X SYS SYS", "GPU2 SYS SYS X NODE", "GPU3 SYS SYS NODE X"]
    two_sockets = from_gpu_matrix("\n".join(["GPU0 GPU1 GPU2 GPU3", *rows]), "a")
    assert ("cpu:0.0", "cpu:0.1") in rates(two_sockets)
    assert ("0.3", "cpu:0.1") in rates(two_sockets)


def test_a_mesh_of_xgmi() -> None:
    topology = read("rocm-smi-topo-xgmi.txt")
    assert (topology.compute_count, topology.switch_count, len(topology.links)) == (8, 0, 56)
    assert set(rates(topology).values()) == {64}


def test_an_infiniband_network() -> None:
    topology = read("ibnetdiscover-voltaire.txt")
    assert (topology.compute_count, topology.switch_count, topology.bandwidth_unit) == (4, 2, "Gbit/s")
    found = rates(topology)
    big, small = "S_005442ba00003080", "S_0008f10400410015"
    assert found["H_0008f10403961354", big] == 4 * 2
    assert found["H_0008f10403960558", big] == 4 * 2 + 2  # two cables, one of which is narrow at one end
    assert found[big, small] == found[small, big] == 4 * 2 + 2


def test_adapters_of_a_host_are_one_rank() -> None:
    port = '[{0}]\t"H-{1}"[1](1)\t\t# "node1 HCA-{0}" lid 1 4xHDR\n'
    text = 'Switch\t36 "S-aa"\t\t# "leaf" base port 0 lid 1 lmc 0\n' + "".join(
        port.format(number, guid) for number, guid in ((1, "b1"), (2, "b2"), (3, "c1"))
    )
    for guid, description in (("b1", "node1 HCA-1"), ("b2", "node1 HCA-2"), ("c1", "node2 mlx5_0")):
        text += f'Ca\t1 "H-{guid}"\t\t# "{description}"\n'
    topology = from_ibnetdiscover(text, "a")
    assert topology.node_ids == ("node1", "node2", "S_aa")
    assert rates(topology)["node1", "S_aa"] == 400


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("GPU0 GPU1\nGPU0 X NV4\n", "no complete row of GPU1"),
        ("GPU0 GPU1\nGPU0 X NV4\nGPU1 NV2 X\n", "GPU0 and GPU1 differ"),
        ("GPU0\nGPU0 X\n", "a single GPU"),
    ],
)
def test_what_is_no_matrix_is_refused(text: str, rule: str) -> None:
    with pytest.raises(InvalidInput, match=rule):
        from_gpu_matrix(text, "a")


def test_other_text_is_neither() -> None:
    for text in ("", "hello", "<system/>", '{"format": "chorale-topology/1"}'):
        assert not is_gpu_matrix(text)
        assert not is_ibnetdiscover(text)
    with pytest.raises(InvalidInput, match="the speed of an InfiniBand link must be known; got ABC"):
        from_ibnetdiscover('Switch 1 "S-aa" # "leaf"\n[1] "H-bb"[1](1) # "x" lid 1 4xABC\n', "a")
    with pytest.raises(InvalidInput, match="two hosts or more"):
        from_ibnetdiscover('Switch 1 "S-aa" # "leaf"\n', "a")
