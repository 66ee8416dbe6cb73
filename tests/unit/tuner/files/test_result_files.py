"""Results of nccl-tests, rccl-tests, OSU and `chorale run` in the forms that they have."""

import json
import re
from pathlib import Path

import pytest

from chorale.synth.errors import InvalidInput
from chorale.tuner.files.result_files import ResultRow, collective_named, parse_results

DATA = Path(__file__).parents[3] / "data"


@pytest.mark.parametrize(
    ("name", "facts", "last"),
    [
        ("all_reduce-nccl.log", ("nccl-tests", "allreduce", "NCCL", "2.30.7"), (2**31, 10118.9)),
        ("all_reduce-nccl.json", ("nccl-tests", "allreduce", "NCCL", "2.30.7"), (2**29, 2575.2)),
        ("all_reduce-nccl-iter.log", ("nccl-tests", "allreduce", "NCCL", "2.31.2"), (2**13, 30.33)),
        ("rccl_all_reduce.csv", ("rccl-tests", "allreduce", "RCCL", None), (2**20, 37.9)),
        ("rccl_all_reduce.json", ("rccl-tests", "allreduce", "RCCL", None), (2**20, 38.1)),
    ],
)
def test_each_form_is_read_whatever_its_file_is_called(name, facts, last):
    [found] = parse_results((DATA / "results" / name).read_bytes(), "job.bin")
    assert (found.tool, found.collective, found.library, found.version) == facts
    assert (found.rows[-1].size_bytes, found.rows[-1].time_us) == last
    assert all(row.wrong == 0 for row in found.rows)


OSU_CUDA = """# OSU MPI-CUDA Allreduce Latency Test v7.0
# Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations
1048576              630.58            619.50            642.46         10
16777216            8630.58           8619.50           8642.46         10
"""


@pytest.mark.parametrize(
    "label", ["[1,0]<stdout>:", "0: ", "launcher-0 nccl-tests ", "node-1,", "\x1b[0;32m", "2025-03-01 10:00:00,123 "]
)
def test_labels_of_lines_are_no_part_of_them(label):
    for text, last in (((DATA / "results" / "all_reduce-nccl.log").read_text(), 2**31), (OSU_CUDA, 2**24)):
        labelled = "".join(f"{label}{line}\r\n" for line in text.splitlines())
        [found] = parse_results(f"```\nsrun: job 12 queued\n{labelled}```\nThanks\n", "x")
        assert (found.collective, found.rows[-1].size_bytes) == ("allreduce", last)
        assert found.rows == parse_results(text, "x")[0].rows


def test_every_document_counts_and_runs_of_other_numbers_of_ranks_stay_apart():
    text = (DATA / "results" / "all_reduce-nccl.json").read_text()
    (one,) = parse_results(text, "x")
    for several in (2 * text, f"[{text}, {text}]", text.replace("\n", " ") + "\n" + text + "\nDone.\n"):
        (found,) = parse_results(several, "x")
        assert found.rows == 2 * one.rows
    log = (DATA / "results" / "all_reduce-nccl.log").read_text()
    rows = [line.split() for line in log.splitlines() if line.strip() and not line.startswith("#")]
    pasted = "| size | count |\n|---|---|\n" + "".join(f"| {' | '.join(row)} |\n" for row in rows)
    assert parse_results(pasted, "all_reduce")[0].rows == parse_results(log, "x")[0].rows
    table = (DATA / "results" / "rccl_all_reduce.csv").read_text()
    for name in ("all_reduce-nccl.json", "rccl_all_reduce.csv"):  # may follow what a launcher says
        document = (DATA / "results" / name).read_text()
        assert parse_results(f"srun: job 12 queued\nsize of the job: 2, time: 5\n{document}", name) == parse_results(
            document, name
        )
    assert parse_results(table.replace(",", ";"), "x") == parse_results(table, "x")
    quoted = "".join(",".join(f'"{cell}"' for cell in line.split(",")) + "\r\n" for line in table.splitlines())
    assert parse_results("\ufeff" + quoted, "x") == parse_results(table, "x")
    text = (DATA / "results" / "all_reduce-nccl.log").read_text()
    more = text.replace(
        "#\n#     ", "#  Rank  2 Group  0 Pid 9 on node1 device  2 [0000:00:07] NVIDIA B200\n#\n#     ", 1
    )
    plain = [re.sub("# nccl-tests.*\n# Collective.*\n", "", each) for each in (text, more)]
    found = parse_results("".join(plain), "all_reduce")
    assert [(each.ranks, len(each.rows)) for each in found] == [(2, 6), (3, 6)]


def test_logs_and_tables_of_nccl_and_rccl_tests():
    path = DATA / "rccl-tests" / "rccl_half_allreduce.txt"
    [found] = parse_results(path.read_bytes(), path.name)
    assert (found.tool, found.library, found.version, found.ranks) == ("rccl-tests", "RCCL", "2.18.3", 16)
    assert found.bus_ratio == pytest.approx(2 * 15 / 16, rel=1e-3)
    row = "  1048576  262144  float  {}  -1  35.15  29.83  52.20  0  34.00  30.84  53.97  0\n"
    text = f"+ ./build/all_reduce_perf -b 1M\n{row.format('sum')}+ ./build/all_gather_perf -b 1M\n{row.format('none')}"
    assert [each.collective for each in parse_results(text, "slurm.out")] == ["allreduce", "allgather"]
    header = "numCycle,collective,gpus,size,type,redop,inplace,time,algbw,busbw,#wrong"
    table = f"{header}\n0,AllGather,8,1024,float,none,1,50.0,0.02,0.03,N/A\n"
    [found] = parse_results(table, "a.csv")
    assert (found.collective, found.ranks, found.rows) == ("allgather", 8, (ResultRow(1024, 50.0, True, None),))
    lines = '{"name":"Broadcast","ranks":4,"size":"64","inPlace":0,"time":"7.5","wrong":"0"}\n' * 2
    assert [row.time_us for row in parse_results(lines, "b")[0].rows] == [7.5, 7.5]
    spellings = {"all_reduce_perf": "allreduce", "ReduceScatter": "reduce_scatter", "osu_bcast": "broadcast"}
    assert {text: collective_named(text) for text in spellings} == spellings
    assert collective_named("sendrecv_perf") is None


OLD = """#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error
   134217728      33554432   float     sum   1500.0   89.48  156.59  2e-07   1490.0   90.08  157.64  2e-07
"""


def test_old_tables_name_the_collective_by_their_bandwidths_only():
    assert parse_results(OLD, "x")[0].collective == "allreduce"
    scattered = OLD.replace("156.59", "78.30").replace("157.64", "78.82")
    assert parse_results(scattered, "x")[0].collective == "reduce_scatter"
    assert parse_results(OLD.replace("sum", "none"), "x")[0].collective is None
    assert parse_results(OLD.replace("sum", "none"), "all_gather.txt")[0].collective == "allgather"
    row = {"size_bytes": 65536, "time_us_median": 812.5, "correct": True}
    document = {"runner": "local", "results": [row], "environment": {"link_mbps": 50}}
    [found] = parse_results(json.dumps(document), "allreduce.json")
    assert (found.collective, found.link_mbps, found.rows) == ("allreduce", 50, (ResultRow(65536, 812.5, True, 0),))


def test_logs_of_others_in_odd_forms():
    """Milliseconds of the first nccl-tests, decimal commas, labels within lines, and tests of no collective."""
    first = "33554432 8388608 float sum 1.587 21.14 31.71 1e-06 1.583 21.19 31.79 1e-06\n"
    assert [row.time_us for row in parse_results(first, "x")[0].rows] == [1587.0, 1583.0]
    row = "1048576 262144 float sum -1 35.15 29.83 52.20 0 34.00 30.84 53.97 0\n"
    (plain,) = parse_results(row, "x")
    assert parse_results(row.replace(".", ","), "x") == [plain]
    table = (DATA / "results" / "rccl_all_reduce.csv").read_text()
    assert parse_results(table.replace(",", ";").replace(".", ","), "x") == parse_results(table, "x")
    lines = ["[0]# nThread 1 nGpus 1", "[0]#  size  count  type", *[f"[0]{row.replace(' 0 ', ' 0[0] ')}".strip()] * 3]
    assert parse_results("\n".join(lines), "x")[0].rows == 3 * plain.rows
    sent = row.replace("52.20", "29.83").replace("53.97", "30.84")
    named_at_end = f"{sent}# Collective test concluded: alltoall_perf\n"
    assert [each.collective for each in parse_results(named_at_end, "x")] == ["alltoall"]
    assert parse_results(f"# Collective test starting: sendrecv_perf\n{sent}", "x")[0].collective is None


INTEL = """
# Benchmarking {}
# #processes = {}
# ( 4 additional processes waiting in MPI_Barrier)
       #bytes #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]
            0         1000         0.04         0.06         0.05
      4194304           10       795.53       797.59       796.56
"""


def test_intel_and_osu_count_the_part_of_a_rank():
    names = ("Allreduce", "Alltoall", "Reduce_scatter", "Reduce_scatter_block", "PingPong")
    text = "# Intel(R) MPI Benchmarks 2021.3" + "".join(INTEL.format(name, 4) for name in names)
    text += INTEL.format("Allreduce", 8) + INTEL.format("Iallreduce", 2).replace("t_min", "t_pure")
    found = parse_results("".join(f"00:55:22  {line}\n" for line in text.splitlines()), "imb.txt")
    assert [(each.collective, each.ranks, each.of_ranks(4).rows) for each in found] == [
        (name, ranks, (ResultRow(parts * 2**22, time_us, False),))
        for name, ranks, parts, time_us in (
            ("allreduce", 4, 1, 797.59), ("alltoall", 4, 4, 797.59), ("reduce_scatter", 4, 1, 797.59),
            ("reduce_scatter", 4, 4, 797.59), ("allreduce", 8, 1, 797.59), ("allreduce", 2, 1, 795.53),
        )
    ]  # fmt: skip
    gathered, reduced = parse_results(OSU, "osu.txt")
    assert [(row.size_bytes, row.time_us) for row in gathered.of_ranks(4).rows] == [(4, 12.45), (4096, 22.69)]
    assert [(row.size_bytes, row.time_us) for row in reduced.of_ranks(4).rows] == [(4, 9.5)]


OSU = """
# OSU MPI Allgather Latency Test v7.5
# Datatype: MPI_CHAR.
# Size       Avg Latency(us)
1                      12.45
1024                   22.69

# OSU MPI-CUDA Non-blocking Allreduce Latency Test v7.3
# Size           Overall(us)       Compute(us)    Pure Comm.(us)        Overlap(%)
4                      20.00             10.00              9.50             50.00
"""


@pytest.mark.parametrize(
    "text",
    [
        *("", "no table", "{", '{"results": 3}', '{"runner": "local", "results": []}', "[1, 2]", "size,time,a,b,c,d\n"),
        "numCycle,name,nranks,size,type,time\n1,AllReduce,4,1024,f," + "1" * 200_000 + "\n",
    ],
    ids=range(8),
)
def test_what_holds_no_results_is_refused(text):
    with pytest.raises(InvalidInput, match=r"no collective timings|not valid JSON|not CSV"):
        parse_results(text, "x")
