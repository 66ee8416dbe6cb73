"""Networks from outputs of tools as they were recorded; tests/data/fabric_tools says where each comes from."""

import json
from fractions import Fraction
from pathlib import Path

import pytest

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.formats.files import from_bytes, machine_of
from chorale.synth.topology.formats.gpu_matrices import is_gpu_matrix, read_gpu_matrix
from chorale.synth.topology.formats.ibnetdiscover import expanded_names, is_ibnetdiscover, read_fabric
from chorale.synth.topology.formats.machine_network import BoxNetwork, boxes_topology
from chorale.synth.topology.topology import Topology
from tests.links import rates_of

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
