"""`chorale judge`, reports of tuning and synthesis, and NCCL's graph files."""

import json
from itertools import pairwise
from pathlib import Path

import pytest

import chorale as ch
from chorale.synth.collective import ALLGATHER
from chorale.synth.errors import InvalidInput
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.methods.catalog import synthesize
from chorale.synth.topology.formats.nccl_dump import RING, NcclChannel, NcclGraph, graph_file, read_graphs
from chorale.synth.topology.spec import parse_topology
from chorale.synth.verify.verified import VerifiedSchedule
from chorale.tuner.reports.nccl_graph import fitted, found_rings
from chorale.tuner.reports.synthesis import warm_start_document
from chorale.tuner.reports.tables import seconds_text
from tests.command import chorale

DATA = Path(__file__).parents[3] / "data"


def log(
    tmp_path: Path, rows: dict[int, float], test: str = "all_reduce_perf", factor: float = 1.75, wrong: int = 0
) -> Path:
    """Write a log of nccl-tests with these sizes in bytes and times in microseconds."""
    path = tmp_path / "job.out"
    lines = [f"# Collective test starting: {test}", "# nccl-tests version 2.19.6 nccl-headers=23007 nccl-library=23007"]
    for size, time_us in rows.items():
        cell = f"{time_us:9.2f} {size / time_us / 1e3:8.3f} {factor * size / time_us / 1e3:8.3f} {wrong:3d}"
        lines.append(f"{size:12d} {size // 4:12d} float sum -1 {cell} {cell}")
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_good_result(tmp_path):
    """8 H100 at 270 GB/s: NVLS by NCCL's model reaches 272, switches that add allow 450."""
    found = ch.judge(log(tmp_path, {2**30: 2**30 / 270e3, 2**33: 2**33 / 270e3}), "h100:1")
    large = found.sizes[-1]
    assert found.verdict.startswith(
        "good: 8GiB at 270 GB/s (busbw 472.5), 99 % of what NCCL 2.28.3 (nvls, 16 channels)"
    )
    assert found.library == {"name": "NCCL", "version": "2.30.7"}
    assert large.percent_of_bound == pytest.approx(60.0, abs=0.1)
    assert (large.bound_us, large.limited_by) == (pytest.approx(2**33 / 450e3), "algorithm")
    found = ch.judge(log(tmp_path, {2**30: 2**30 / 600e3}), "h100:1")
    assert found.verdict.startswith("faster than h100:1 allows, up to 133 % of its bound")
    assert found.sizes[0].note == "faster than the bound"
    for spec, message in (("h100:2", "results must be of the 16 ranks of h100:2"), ("ring:8", "has no link rates")):
        with pytest.raises(ch.ChoraleError, match=message):
            ch.judge(log(tmp_path, {2**30: 5000.0}), spec)


GATHER_OF_2020 = """# nThread 1 nGpus 2 minBytes 8 maxBytes 134217728 step: 2(factor) iters: 20 validation: 1
#   Rank  0 Pid   1 on    host device  0 [0x01] GeForce RTX 2080 Ti
#   Rank  1 Pid   1 on    host device  1 [0x02] GeForce RTX 2080 Ti
#       size         count    type     time   algbw   busbw  error     time   algbw   busbw  error
       65536         16384   float    16.57    1.98    1.98  0e+00    13.83    2.37    2.37  0e+00
    16777216       4194304   float    418.5   20.05   20.05  0e+00    414.0   20.26   20.26  0e+00
   134217728      33554432   float   3298.6   20.34   20.34  0e+00   3070.3   21.86   21.86  0e+00
"""
"""Of NVIDIA/nccl-tests issue 44: algbw was busbw then, and rows had no operation and no root."""


@pytest.mark.parametrize(
    ("path", "spec", "collective", "verdict", "of_bound", "share"),
    [
        ("results/all_reduce-nccl.log", "b200:2", None, "fair: 2GiB at 212.2 GB/s (busbw 397.9), 81 %", 53, 0.81),
        ("rccl-tests/rccl_half_allreduce.txt", "mi250half:2", "allreduce", "slow: 8GiB at 23.67 GB/s", 18, 0.35),
        (None, "file:", "allgather", "slow: 128MiB at 43.71 GB/s (busbw 21.86), 55 %", 44, 0.55),
    ],
    ids=["16 B200", "16 MI250", "2 RTX 2080 Ti"],
)
def test_public_logs(tmp_path, path, spec, collective, verdict, of_bound, share):
    """The largest size beside the bound and the library's own model."""
    log_file = tmp_path / "old.log" if path is None else DATA / path
    if path is None:
        log_file.write_text(GATHER_OF_2020)
        cells = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV2\t0-15\nGPU1\tNV2\t X \t0-15\nGeForce RTX 2080 Ti\n"
        (tmp_path / "topo.txt").write_text(cells)
        spec = f"file:{tmp_path / 'topo.txt'}"
    found = ch.judge(str(log_file), spec, collective=collective)
    large = found.sizes[-1]
    assert found.verdict.startswith(verdict)
    assert large.percent_of_bound == pytest.approx(of_bound, abs=1)
    assert large.library_us / large.measured_us == pytest.approx(share, abs=0.01)


def test_what_limits_a_size(tmp_path):
    for spec, size, limit in (
        ("a100:1", 2**30, "link"),
        ("mi250half:2", 2**30, "algorithm"),
        ("a100:1", 2**13, "latency"),
    ):
        ranks = ch.topology(spec).compute_count
        found = ch.judge(log(tmp_path, {size: 1e6}, factor=2 * (ranks - 1) / ranks), spec)
        assert found.sizes[0].limited_by == limit
        assert found.verdict.startswith("slow")
    path = log(tmp_path, {2**30: 1e5}, "all_gather_perf", 0.75)
    assert ch.judge(path, "railclos:4,1,50,1").sizes[0].limited_by == "NIC"


def test_a_size_that_is_slower_than_those_around_it(tmp_path):
    times = {2**power: 30 + 2**power / 200e3 for power in range(20, 30)}
    times[2**24] *= 3
    found = ch.judge(log(tmp_path, times), "h100:1")
    assert [size.size_bytes for size in found.sizes if size.note] == [2**24]
    assert "16MiB: unusually slow" in "\n".join(found.notes())
    assert found.verdict.endswith("unusually slow: 16MiB")


def test_wrong_elements_are_the_verdict(tmp_path, capsys):
    done = chorale(capsys, "judge", log(tmp_path, {2**20: 50.0}, wrong=3), "--topology", "h100:1", "--json", code=1)
    assert done.document["verdict"].startswith("wrong: 2 of the measured times")
    file = DATA / "rccl-tests" / "rccl_half_allreduce.txt"
    done = chorale(capsys, "judge", file, "--topology", "mi250half:2", code=0)
    assert done.stdout.startswith("slow: 10GiB at ") or done.stdout.startswith("slow: 8GiB at ")
    document = chorale(capsys, "judge", file, "--topology", "mi250half:2", "--json").document
    assert set(document["sizes"][0]) == {
        "size_bytes", "measured_us", "bound_us", "percent_of_bound", "library_us", "limited_by", "note",
    }  # fmt: skip
    assert document["library"] == {"name": "RCCL", "version": "2.18.3"}


def test_an_alltoall_far_below_the_bound(tmp_path, capsys):
    """The verdict and the table round alike, and the next command designs an all-to-all."""
    done = chorale(capsys, "judge", log(tmp_path, {2**20: 1e4}, "alltoall_perf", 31 / 32), "--topology", "h100:4")
    verdict, table = " ".join(done.stdout.split()).split("alltoall on h100:4")
    assert (" 0.16 % of the bound" in verdict, " 0.16 % " in table) == (True, True)
    assert "next: chorale alltoall h100:4" in done.stderr


def test_mpi_on_a_network_of_links(tmp_path):
    """Rabenseifner on a cube of 8 ranks moves 7/4 of 1 MB over one link: 14 ms, and six steps of 0.4 us."""
    path = tmp_path / "osu"
    path.write_text("# OSU MPI Allreduce Latency Test v7.5\n# Size       Avg Latency(us)\n1000000      20000.0\n")
    [size] = ch.judge(path, "hypercube:3", link_gbps="1").sizes
    assert (size.library_us, size.bound_us) == (pytest.approx(14002.4), pytest.approx(8000 * 7 / 12))
    with pytest.raises(ch.ChoraleError, match="link_gbps=400"):
        ch.judge(path, "hypercube:3")
    row = {"size_bytes": 1000000, "time_us_median": 20000.0, "correct": True}
    path = tmp_path / "run.json"  # of `chorale run`
    path.write_text(json.dumps({"runner": "local", "results": [row], "environment": {"link_mbps": 1000}}))
    with pytest.raises(ch.ChoraleError, match="collective"):
        ch.judge(path, "hypercube:3")
    assert ch.judge(path, "hypercube:3", "allreduce").sizes[0].library_us == pytest.approx(14002.4)


def test_kept_transfers_are_those_that_both_have():
    one, other = (
        synthesize(method, parse_topology("complete:5"), ALLGATHER, None, SerialExecutor())
        for method in ("bfb", "ring")
    )

    def named(verified: VerifiedSchedule) -> set[tuple[str, str, str, int, int]]:
        """Return the transfers of one chunk a shard by what they mean: ids of nodes, and chunks."""
        schedule = verified.schedule.expand()
        names, rows = schedule.topology.node_ids, schedule.transfers
        columns = (schedule.src, schedule.dst, rows.shard, rows.lo, rows.hi)
        return {(names[a], names[b], names[c], lo, hi) for a, b, c, lo, hi in zip(*map(list, columns), strict=True)}

    same = warm_start_document(one, one)
    assert same["transfers_kept"] == same["transfers_possible"] == 20
    assert warm_start_document(one, other)["transfers_kept"] == len(named(one) & named(other)) < 20


def test_durations_have_the_unit_that_suits_them():
    durations = {4.03: "4.03 s", 2.88e-12: "2.88 ps", -0.083: "-83 ms", -1.12: "-1.12 s"}
    assert {seconds: seconds_text(seconds) for seconds in durations} == durations


TOOLS = Path(__file__).parents[3] / "data" / "fabric_tools"
DUMPED = TOOLS / "nccl-graph.xml"
PAIRS = f"file:{TOOLS / 'a100x4-nv4.txt'}"


def test_graph_files_are_read_and_written_back_and_others_refused():
    [graph] = read_graphs(DUMPED.read_bytes())
    assert graph == NcclGraph(0, RING, 20, 20, (NcclChannel((0, 1, 3, 2), (0, 0)),))
    assert read_graphs(graph_file([graph])) == [graph]
    # Devices of fused hosts are hexadecimal, with the host above
    text = DUMPED.read_bytes().replace(b'gpu dev="3"', b'gpu dev="0x100000000000003"')
    [graph] = read_graphs(text.replace(b'net dev="0"', b'net dev="a"'))
    assert graph.channels == (NcclChannel((0, 1, 3, 2), (10, 10)),)
    for content, message in (
        (b"<system/>", "the root element of a graph file of NCCL must be <graphs>"),
        (b'<graphs version="1"/>', "this graph file of NCCL has no graph with channels"),
        (b'<graphs><graph id="0" pattern="x" speedintra="1"><channel/></graph></graphs>', "damaged graph file"),
    ):
        with pytest.raises(InvalidInput, match=message):
            read_graphs(content)


def test_rings_beside_those_that_are_found_of_one_box_and_of_several(capsys, tmp_path):
    """One ring of 20 over links of 100, which could carry rings of 300 in all: three links at each of four GPUs."""
    document = chorale(capsys, "topology", "graph", PAIRS, DUMPED, "--json").document
    [dumped] = document["graphs"]
    assert (dumped["pattern"], dumped["stated_gb_per_s"]) == ("ring", 20)
    assert dumped["carried_gb_per_s"] == pytest.approx(100)
    assert document["found"]["carried_gb_per_s"] == pytest.approx(300)
    assert document["found"]["stated_gb_per_s"] == pytest.approx(240)  # NCCL counts 20 of 25 for a link
    assert "found here" in chorale(capsys, "topology", "graph", PAIRS, DUMPED).stdout
    graph = NcclGraph(0, RING, 45, 45, (NcclChannel(tuple(range(8)), (0, 0)),))
    assert fitted(graph, parse_topology("h100:2"))["carried_gb_per_s"] == pytest.approx(50)
    assert "for one box" in chorale(capsys, "topology", "graph", "h100:2", "-o", tmp_path / "x.xml", code=2).stderr
    topology = parse_topology("h100:1")
    chain = NcclGraph(1, 1, 30, 30, (NcclChannel(tuple(range(8))),))
    assert fitted(chain, topology)["carried_gb_per_s"] == pytest.approx(
        225
    )  # a GPU inside the chain sends twice at 450
    with pytest.raises(InvalidInput, match="the graph is for another number of GPUs"):
        fitted(read_graphs(DUMPED.read_bytes())[0], topology)
    assert fitted(NcclGraph(3, 5, 40, 40, (NcclChannel((0,)),)), topology)["carried_gb_per_s"] is None


def test_rings_are_found_and_written_as_the_library_takes_them():
    for spec, channels, rate in (("h100:1", 12, 30), ("mi300x:1", 7, 48), ("mi250half:1", 2, 36)):
        topology = parse_topology(spec)
        graph = found_rings(topology)
        assert (len(graph.channels), graph.speed_intra) == (channels, rate)
        assert all(sorted(channel.gpus) == list(range(topology.compute_count)) for channel in graph.channels)
        if spec == "mi300x:1":  # a complete box: every link once
            rings = [channel.gpus for channel in graph.channels]
            assert len({pair for ring in rings for pair in pairwise([*ring, ring[0]])}) == 56
        assert read_graphs(graph_file([graph])) == [graph]
