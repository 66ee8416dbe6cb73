"""NCCL's graph files: read, fitted to a machine, compared with rings that are found, and written."""

from itertools import pairwise
from pathlib import Path

import pytest

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.formats.nccl_graph import RING, NcclChannel, NcclGraph, graph_file, read_graphs
from chorale.synth.topology.spec import parse_topology
from chorale.tuner.reports.nccl_graph import fitted, found_rings
from tests.command import chorale

TOOLS = Path(__file__).parents[3] / "data" / "fabric_tools"
DUMPED = TOOLS / "nccl-graph.xml"
PAIRS = f"file:{TOOLS / 'a100x4-nv4.txt'}"


def test_a_file_is_read_and_written_back() -> None:
    [graph] = read_graphs(DUMPED.read_bytes())
    assert graph == NcclGraph(0, RING, 20, 20, (NcclChannel((0, 1, 3, 2), (0, 0)),))
    assert read_graphs(graph_file([graph])) == [graph]
    # Devices of fused hosts are hexadecimal, with the host above
    text = DUMPED.read_bytes().replace(b'gpu dev="3"', b'gpu dev="0x100000000000003"')
    [graph] = read_graphs(text.replace(b'net dev="0"', b'net dev="a"'))
    assert graph.channels == (NcclChannel((0, 1, 3, 2), (10, 10)),)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"<system/>", "the root element of a graph file of NCCL must be <graphs>"),
        (b'<graphs version="1"/>', "this graph file of NCCL has no graph with channels"),
        (b'<graphs><graph id="0" pattern="x" speedintra="1"><channel/></graph></graphs>', "damaged graph file of NCCL"),
    ],
)
def test_other_files_are_refused(content: bytes, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        read_graphs(content)


def test_a_dumped_ring_beside_those_that_are_found(capsys: pytest.CaptureFixture[str]) -> None:
    """One ring of 20 over links of 100, which could carry rings of 300 in all: three links at each of four GPUs."""
    document = chorale(capsys, "topology", "graph", PAIRS, DUMPED, "--json").document
    [dumped] = document["graphs"]
    assert (dumped["pattern"], dumped["stated_gb_per_s"]) == ("ring", 20)
    assert dumped["carried_gb_per_s"] == pytest.approx(100)
    assert document["found"]["carried_gb_per_s"] == pytest.approx(300)
    assert document["found"]["stated_gb_per_s"] == pytest.approx(240)  # NCCL counts 20 of 25 for a link
    assert "found here" in chorale(capsys, "topology", "graph", PAIRS, DUMPED).stdout


@pytest.mark.parametrize(
    ("spec", "channels", "rate"), [("h100:1", 12, 30), ("mi300x:1", 7, 48), ("mi250half:1", 2, 36)]
)
def test_rings_are_found_and_written_as_the_library_takes_them(spec: str, channels: int, rate: float) -> None:
    topology = parse_topology(spec)
    graph = found_rings(topology)
    assert (len(graph.channels), graph.speed_intra) == (channels, rate)
    assert all(sorted(channel.gpus) == list(range(topology.compute_count)) for channel in graph.channels)
    if spec == "mi300x:1":  # a complete box: every link once
        rings = [channel.gpus for channel in graph.channels]
        assert len({pair for ring in rings for pair in pairwise([*ring, ring[0]])}) == 56
    assert read_graphs(graph_file([graph])) == [graph]


def test_trees_go_both_ways_and_switches_are_left_to_the_library() -> None:
    topology = parse_topology("h100:1")
    chain = NcclGraph(1, 1, 30, 30, (NcclChannel(tuple(range(8))),))
    assert fitted(chain, topology)["carried_gb_per_s"] == pytest.approx(
        225
    )  # a GPU inside the chain sends twice at 450
    with pytest.raises(InvalidInput, match="the graph is for another number of GPUs"):
        fitted(read_graphs(DUMPED.read_bytes())[0], topology)
    assert fitted(NcclGraph(3, 5, 40, 40, (NcclChannel((0,)),)), topology)["carried_gb_per_s"] is None


def test_several_boxes_are_one_ring(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Each box is entered and left by one NIC of 50."""
    graph = NcclGraph(0, RING, 45, 45, (NcclChannel(tuple(range(8)), (0, 0)),))
    assert fitted(graph, parse_topology("h100:2"))["carried_gb_per_s"] == pytest.approx(50)
    refused = chorale(capsys, "topology", "graph", "h100:2", "-o", tmp_path / "x.xml")
    assert (refused.code, "for one box" in refused.stderr) == (2, True)
