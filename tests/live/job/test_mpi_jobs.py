"""MPI jobs under the preloaded library: served or refused, in all languages, on nodes, with a dead rank."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from chorale.job.mpi.preload import preload_library
from chorale.job.record import read_record
from chorale.job.table.layout import ANY_DTYPE, JobEntry, Table, TableProgram, table_bytes
from chorale.runners.engine.build import native_folder
from chorale.runners.mpi.launch import OPEN_MPI, find_mpiexec, mpi_launcher
from tests.command import chorale
from tests.live.job.torch.tables import alltoall_program, program_for
from tests.live.support import needs_mpi
from tests.unit.job.table.examples import forged

pytestmark = [needs_mpi, pytest.mark.timeout(600)]
RANKS = 4
ROOT = 1
PROGRAM = Path(__file__).parent / "mpi_program.c"
COLLECTIVES = ("allgather", "reduce_scatter", "allreduce", "broadcast", "reduce", "alltoall")


@cache
def program_of(collective: str) -> TableProgram:
    if collective == "alltoall":
        return alltoall_program()
    return program_for(collective, ROOT if collective in ("broadcast", "reduce") else None)


def write_table(path: Path, collectives: Sequence[str], min_bytes: int = 0) -> Path:
    """Write a table whose entries are for all sizes from `min_bytes` on."""
    programs = {name: program_of(name) for name in collectives}
    entries = tuple(
        JobEntry(name, ANY_DTYPE, None, program.root, min_bytes, None, program.digest)
        for name, program in programs.items()
    )
    named = {program.digest: program for program in programs.values()}
    path.write_bytes(table_bytes(Table({"spec": "ring:4"}, RANKS, entries, named)))
    return path


def compiler(name: str = "mpicc") -> Path:
    return Path(find_mpiexec()).parent / name


def compiled(folder: Path, mpicc: Path | None = None) -> Path:
    mpicc, program = mpicc or compiler(), folder / "mpi_program"
    subprocess.run([mpicc, "-O2", "-Wall", "-Wextra", "-Werror", PROGRAM, "-o", program], check=True)
    return program


def job_command(
    argv: Sequence[str | Path], environment: Mapping[str, str], preload: Path | None = None, ranks: int = RANKS
) -> tuple[list[str], dict[str, str]]:
    """Return a command that runs `argv` on `ranks` ranks on this machine, and its variables.

    preload: by default the library for the MPI that is there
    """
    mpiexec = find_mpiexec()
    variables = {**environment, "LD_PRELOAD": str(preload or preload_library())}
    launcher = mpi_launcher(mpiexec)
    options = (*launcher.on_hosts("localhost"), *launcher.passing(variables))
    return [mpiexec, *options, "-n", str(ranks), *map(str, argv)], variables


def run_job(
    argv: Sequence[str | Path],
    environment: Mapping[str, str],
    preload: Path | None = None,
    limit_s: float = 100.0,
    ranks: int = RANKS,
) -> subprocess.CompletedProcess[str]:
    command, variables = job_command(argv, environment, preload, ranks)
    return subprocess.run(
        command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=limit_s, check=False
    )


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("program"))


@pytest.fixture(scope="session")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_table(tmp_path_factory.mktemp("table") / "table", COLLECTIVES)


def test_a_c_program_runs_tuned_programs_and_its_results_are_right(program: Path, tmp_path: Path) -> None:
    report, record = tmp_path / "report", tmp_path / "record"
    served = set(COLLECTIVES) - {"alltoall"}
    table = write_table(tmp_path / "table", tuple(sorted(served)))
    environment = {"CHORALE_TABLE": str(table), "CHORALE_REPORT": str(report), "CHORALE_RECORD": str(record)}
    done = run_job((program, "1048576", "3"), environment)
    assert done.returncode == 0, done.stderr
    assert "all right" in done.stdout
    counted = json.loads(report.read_text())
    assert {entry["collective"] for entry in counted["programs"]} == served
    assert [entry["reason"] for entry in counted["fallbacks"]] == ["collective not in the table"]
    calls = json.loads(record.read_text())
    assert (calls["format"], calls["ranks"]) == ("chorale-record/1", 4)
    assert {call["collective"] for call in calls["calls"]} == set(COLLECTIVES)
    assert {call["dtype"] for call in calls["calls"]} == {"float32"}
    assert {call["root"] for call in calls["calls"] if call["collective"] == "reduce"} == {1}


def test_a_record_is_the_same_whether_programs_or_mpi_serve_the_calls(
    program: Path, table: Path, tmp_path: Path
) -> None:
    counts = {}
    for name, environment in (("mpi", {}), ("programs", {"CHORALE_TABLE": str(table), "CHORALE_STRICT": "1"})):
        files = {"CHORALE_REPORT": str(tmp_path / "report"), "CHORALE_RECORD": str(tmp_path / name)}
        done = run_job((program, "16384", "2"), {**environment, **files})
        assert done.returncode == 0, done.stderr
        assert "all right" in done.stdout
        counts[name] = {key: count.calls for key, count in read_record(tmp_path / name).calls.items()}
    assert counts["programs"] == counts["mpi"]
    report = json.loads((tmp_path / "report").read_text())
    assert report["fallbacks"] == []
    served: dict[str, tuple[int, int]] = {}
    for key, calls in counts["mpi"].items():
        before = served.get(key.collective, (0, 0))
        served[key.collective] = (before[0] + calls, before[1] + calls * key.size_bytes)
    assert {each["collective"]: (each["calls"], each["bytes"]) for each in report["programs"]} == served
    assert set(served) == set(COLLECTIVES)


PYTHON = """
import numpy
from mpi4py import MPI
comm = MPI.COMM_WORLD
mine, total = numpy.full(1000, comm.rank + 1.0), numpy.zeros(1000)
comm.Allreduce(mine, total)
assert (total == 10).all()
half = comm.Split(comm.rank % 2)
half.Allreduce(mine, total)
assert (total == (4 if comm.rank % 2 == 0 else 6)).all()
"""


def test_mpi4py_is_served_too(table: Path, tmp_path: Path) -> None:
    report = tmp_path / "report"
    done = run_job((sys.executable, "-c", PYTHON), {"CHORALE_TABLE": str(table), "CHORALE_REPORT": str(report)})
    assert done.returncode == 0, done.stderr
    counted = json.loads(report.read_text())
    assert [(e["collective"], e["calls"], e["bytes"]) for e in counted["programs"]] == [("allreduce", 1, 8000)]
    assert {e["reason"] for e in counted["fallbacks"]} == {"group not in the table"}


def test_strict_names_what_it_refuses(program: Path, tmp_path: Path) -> None:
    table = write_table(tmp_path / "table", ("allreduce",), min_bytes=64)
    done = run_job((program, "1024", "1"), {"CHORALE_TABLE": str(table), "CHORALE_STRICT": "1"})
    assert done.returncode != 0
    assert "allreduce of 4 bytes: CHORALE_STRICT refuses it: size not in the table" in done.stderr
    assert "Chorale: allreduce: CHORALE_STRICT refuses it" in done.stderr  # as the text of an error class of its own


def test_ranks_with_different_tables_are_named(program: Path, table: Path, tmp_path: Path) -> None:
    other = write_table(tmp_path / "other", ("allreduce",))
    choose = f'test "${{PMI_RANK:-$PMIX_RANK}}" = 2 && export CHORALE_TABLE={other}; exec {program} 4 1'
    done = run_job(("/bin/sh", "-c", choose), {"CHORALE_TABLE": str(table)})
    assert done.returncode != 0
    assert "the ranks of the job have different tuning tables" in done.stderr
    assert "ranks 0, 1, 3:" in done.stderr
    assert "ranks 2:" in done.stderr


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("forged", "a job runs only correct tables (words)"),
        ("changed", "the checksum in the second line of the tuning table is wrong"),
        ("shorter", "the checksum in the second line of the tuning table is wrong"),
        ("pipe", "a tuning table must be a regular file"),
    ],
)
def test_a_table_that_no_job_may_run_is_an_error_at_the_start(
    name: str, said: str, program: Path, table: Path, tmp_path: Path
) -> None:
    data = table.read_bytes()
    (tmp_path / "forged").write_bytes(forged(data))
    (tmp_path / "changed").write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    (tmp_path / "shorter").write_bytes(data[:-1])
    os.mkfifo(tmp_path / "pipe")
    done = run_job((program, "4", "1"), {"CHORALE_TABLE": str(tmp_path / name)}, limit_s=60.0)
    assert done.returncode != 0
    assert said in done.stderr


def test_a_rank_that_stalls_is_an_error_in_time(program: Path, table: Path) -> None:
    done = run_job((program, "4", "1", "2"), {"CHORALE_TABLE": str(table), "CHORALE_TIMEOUT_S": "3"}, limit_s=60.0)
    assert done.returncode != 0
    assert "allgather of 16 bytes" in done.stderr


@pytest.fixture
def abi_program(tmp_path: Path) -> Path:
    if mpi_launcher(find_mpiexec()).name == OPEN_MPI or not compiler("mpicc_abi").exists():
        pytest.skip("THE STANDARD ABI IS NOT TESTED ON THIS MACHINE: its MPI has no mpicc_abi")
    return compiled(tmp_path, compiler("mpicc_abi"))


@pytest.mark.slow
def test_a_program_of_another_mpi_is_refused_in_a_line(abi_program: Path, tmp_path: Path) -> None:
    table = write_table(tmp_path / "table", COLLECTIVES)
    done = run_job((abi_program, "1024", "1"), {"CHORALE_TABLE": str(table)})
    assert done.returncode != 0
    assert "all right" not in done.stdout
    said = {line for line in done.stderr.splitlines() if line.startswith("chorale:")}
    assert len(said) == 1
    [line] = said
    assert re.search(
        r"uses MPICH and its kin \(/[^,)]*/libmpi\.so\), and the program uses another MPI \(/[^,)]*\): b", line
    )
    assert "libmpi_abi.so.1" in line
    assert "chorale job mpi-preload" in line


@pytest.mark.slow  # another library is built
def test_a_library_of_its_own_serves_it(abi_program: Path, tmp_path: Path) -> None:
    table, report = write_table(tmp_path / "table", COLLECTIVES), tmp_path / "report"
    environment = {"CHORALE_TABLE": str(table), "CHORALE_STRICT": "1", "CHORALE_REPORT": str(report)}
    done = run_job((abi_program, "65536", "2"), environment, preload_library(mpicc=compiler("mpicc_abi")))
    assert done.returncode == 0, done.stderr
    assert "all right" in done.stdout
    counted = json.loads(report.read_text())
    assert {entry["collective"] for entry in counted["programs"]} == set(COLLECTIVES)
    assert counted["fallbacks"] == []


HERE = Path(__file__).parent
FORTRAN = {"mpif.h": 1, "use mpi": 2, "use mpi_f08": 3}


def languages() -> Iterator[list[str]]:
    yield [str(compiler("mpicxx")), str(HERE / "mpi_languages.cpp")]
    for form in FORTRAN.values() if compiler("mpifort").exists() else ():
        flags = [f"-DFORM={form}", "-fallow-argument-mismatch"]
        yield [str(compiler("mpifort")), *flags, str(HERE / "mpi_languages.F90")]


OTHERS = {"group not in the table", "call that does not wait for its result"}
"""Why the library serves calls of these programs, though the table is for all collectives."""


def test_calls_are_served_counted_or_refused(tmp_path: Path) -> None:
    program, report = tmp_path / "program", tmp_path / "report.json"
    variables = {"CHORALE_TABLE": str(write_table(tmp_path / "table", COLLECTIVES)), "CHORALE_REPORT": str(report)}
    for build in languages():
        report.unlink(missing_ok=True)
        subprocess.run([*build, "-DPENDING", "-o", program], check=True, cwd=tmp_path)
        done = run_job((program,), variables)
        assert done.returncode == 0, (build, done)
        written = json.loads(report.read_text())
        assert written["programs"], build
        fell = {(each["collective"], each["reason"]): each["calls"] for each in written["fallbacks"]}
        assert {reason for _, reason in fell} <= OTHERS
        assert fell["allreduce", "group not in the table"] == 1
        assert ("allreduce", "call that does not wait for its result") in fell
    done = run_job((program,), {**variables, "CHORALE_STRICT": "1"})
    assert "CHORALE_STRICT refuses it" in done.stderr + done.stdout
    subprocess.run([*next(languages()), "-o", program], check=True, cwd=tmp_path)
    assert run_job((program,), {**variables, "CHORALE_STRICT": "1"}).returncode == 0


SOURCE = Path(__file__).with_name("mpi_uneven.c")
SHAPE = "vector that ranks do not divide into equal shards"


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("uneven") / "uneven"
    subprocess.run([compiler(), "-O2", "-Wall", "-Wextra", "-Werror", SOURCE, "-o", path], check=True)
    return path


def test_shards_of_different_sizes_are_served_and_right_to_the_byte(uneven: Path, tmp_path: Path) -> None:
    table = write_table(tmp_path / "t", ["allgather", "alltoall", "reduce_scatter"])
    report = tmp_path / "report.json"
    done = run_job([uneven, "1000", "2"], {"CHORALE_TABLE": str(table), "CHORALE_REPORT": str(report)})
    assert done.returncode == 0, done.stderr
    written = json.loads(report.read_text())
    calls = {entry["collective"]: entry["calls"] for entry in written["programs"]}
    assert calls == {"allgather": 24, "alltoall": 24, "reduce_scatter": 9}  # of each call whose shards are not sparse
    assert written["fallbacks"] == [{"reason": SHAPE, "collective": "alltoall", "calls": 8, "bytes": 192_000}]
    exchanges = written["exchanges"]
    assert (exchanges["calls"], exchanges["bytes"]) == (32, 32 * 4 * 16)
    assert exchanges["seconds"] > 0


def test_what_the_table_does_not_cover_is_not_exchanged_and_refused_where_strict(uneven: Path, tmp_path: Path) -> None:
    table = write_table(tmp_path / "t", ["allgather", "reduce_scatter"])
    report = tmp_path / "report.json"
    settings = {"CHORALE_TABLE": str(table), "CHORALE_REPORT": str(report)}
    assert run_job([uneven, "100", "1"], settings).returncode == 0
    written = json.loads(report.read_text())
    assert written["exchanges"]["calls"] == 0
    assert {entry["reason"] for entry in written["fallbacks"]} == {"collective not in the table"}
    refused = run_job([uneven, "100", "1"], {**settings, "CHORALE_STRICT": "1"})
    assert refused.returncode != 0
    assert "CHORALE_STRICT refuses it: collective not in the table" in refused.stderr


BLOCKS, CYCLES = "RANK / 2", "RANK % 4"


def run_on_nodes(command: str, table: Path, node: str, ranks: int, **variables: str) -> str:
    """Run a job that ends well, and return what it prints; node: of a rank, in the shell's arithmetic."""
    ranked = f"RANK=${{PMI_RANK:-$OMPI_COMM_WORLD_RANK}}; export CHORALE_NODE=$(({node})); exec {command}"
    done = run_job(("/bin/sh", "-c", ranked), {"CHORALE_TABLE": str(table), **variables}, ranks=ranks)
    assert done.returncode == 0, done.stderr
    return done.stdout


def report_of(
    program: Path, table: Path, node: str, ranks: int, environment: dict[str, str], repeats: int = 3
) -> dict[str, Any]:
    report = table.parent / "report"
    command = f"{program} 4096 {repeats}"
    assert "all right" in run_on_nodes(command, table, node, ranks, CHORALE_REPORT=str(report), **environment)
    document: dict[str, Any] = json.loads(report.read_text())
    return document


@pytest.mark.parametrize("way", ["leaders", "slices"])
def test_each_way_serves_all_collectives_in_any_order_of_ranks(program: Path, table: Path, way: str) -> None:
    report = report_of(program, table, CYCLES, 8, {"CHORALE_WITHIN_NODES": way, "CHORALE_STRICT": "1"})
    assert {entry["collective"] for entry in report["programs"]} == set(COLLECTIVES)
    only = {"reduce": "leaders", "alltoall": "slices"}
    assert {entry["collective"]: entry["by"] for entry in report["within_nodes"]} == {
        name: only.get(name, way) for name in COLLECTIVES
    }


def test_both_ways_are_measured(program: Path, table: Path) -> None:
    report = report_of(program, table, BLOCKS, 8, {"CHORALE_WITHIN_NODES": "measure"}, repeats=12)
    by = {entry["by"] for entry in report["within_nodes"] if entry["collective"] == "allreduce"}
    assert by == {"leaders", "slices"}
    # the root, rank 1, is on node 0, and the table has programs for root 1 only
    assert {entry["reason"] for entry in report["fallbacks"]} == {"root not in the table"}


THREE_ON_1 = "RANK < 4 ? RANK : 1"


@pytest.mark.parametrize(("node", "way"), [(CYCLES, "leaders"), (THREE_ON_1, "leaders"), (THREE_ON_1, "slices")])
def test_nodes_with_different_numbers_of_ranks_run_what_has_no_shards(
    program: Path, table: Path, node: str, way: str
) -> None:
    report = report_of(program, table, node, 6, {"CHORALE_WITHIN_NODES": way})
    ways = {"allreduce": way, "broadcast": way, "reduce": "leaders"}
    assert {entry["collective"]: entry["by"] for entry in report["within_nodes"]} == ways
    assert {entry["reason"] for entry in report["fallbacks"]} == {"nodes have different numbers of ranks"}
    assert {entry["collective"] for entry in report["fallbacks"]} == set(COLLECTIVES) - set(ways)


def test_the_report_says_why_a_table_serves_no_call(program: Path, table: Path) -> None:
    report = report_of(program, table, "RANK / 4", 8, {})
    assert {entry["reason"] for entry in report["fallbacks"]} == {
        "group not in the table: the table is for 4 ranks or nodes, the job has 8 ranks on 2 nodes"
    }


ROOT_5 = """
import numpy
from mpi4py import MPI
rank = MPI.COMM_WORLD.rank
for _ in range(4):
    mine, total = numpy.full(1000, rank + 1.0), numpy.zeros(1000)
    MPI.COMM_WORLD.Reduce(mine, total if rank == 5 else None, root=5)
    assert (total == (21 if rank == 5 else 0)).all()
    MPI.COMM_WORLD.Bcast(mine, root=5)
    assert (mine == 6).all()
"""


def test_a_root_that_other_nodes_have_no_partner_for_hands_over(table: Path, tmp_path: Path) -> None:
    (tmp_path / "root.py").write_text(ROOT_5)
    run_on_nodes(f"{sys.executable} {tmp_path}/root.py", table, THREE_ON_1, 6, CHORALE_STRICT="1")


SPLIT = """
import numpy
from mpi4py import MPI
slices = MPI.COMM_WORLD.Split(MPI.COMM_WORLD.rank % 2)
mine, total = numpy.full(1000, slices.rank + 1.0), numpy.zeros(1000)
slices.Allreduce(mine, total)
assert (total == 10).all()
"""


def test_a_communicator_with_one_rank_of_each_node_runs_the_program(table: Path, tmp_path: Path) -> None:
    (tmp_path / "split.py").write_text(SPLIT)
    run_on_nodes(f"{sys.executable} {tmp_path}/split.py", table, BLOCKS, 8, CHORALE_STRICT="1")


def test_the_path_of_the_library_is_short_and_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for options, folder in ((), native_folder().parent), (("--install", str(tmp_path / "new")), tmp_path / "new"):
        done = chorale(capsys, "job", "mpi-preload", *options)
        assert done.stdout.strip() == str(folder / "libchorale_mpi.so")
        assert Path(done.stdout.strip()).read_bytes() == preload_library().read_bytes()
    assert chorale(capsys, "job", "mpi-preload", "--install", str(tmp_path / "no" / "parent")).code == 2
    assert "its compiler" not in done.stderr
    (tmp_path / "mpiexec").touch(mode=0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert f"for the MPI of {tmp_path}/mpiexec, name its compiler" in chorale(capsys, "job", "mpi-preload").stderr


VICTIM = 2
LIMIT_S = 20.0
"""Of calls; a rank that is gone is noticed long before."""
PATIENCE_S = 90.0
SUPERVISED = '"$@"; for i in $(seq 600); do test -e "$0/over" && exit; sleep 0.1; done'
"""A launcher ends all ranks when one of them has died, so it gets to know a shell instead, until all are done."""


def endings(folder: Path, delay_s: float) -> list[dict[str, object]]:
    """Return what the surviving ranks say of a job of which one is killed after `delay_s`."""
    table = write_table(folder / "table", COLLECTIVES)
    rank = (sys.executable, "-m", "tests.live.job.mpi_endless", str(folder), str(VICTIM), str(delay_s))
    variables = {"CHORALE_TABLE": str(table), "CHORALE_STRICT": "1", "CHORALE_TIMEOUT_S": str(LIMIT_S)}
    command, environment = job_command(("/bin/sh", "-c", SUPERVISED, folder, *rank), variables)
    with (folder / "said").open("w+b") as said:
        job = subprocess.Popen(command, env={**os.environ, **environment}, stdout=said, stderr=said)
        try:
            files = [folder / f"{rank}.json" for rank in range(RANKS) if rank != VICTIM]
            deadline = time.monotonic() + PATIENCE_S
            while not all(file.exists() for file in files) and time.monotonic() < deadline and job.poll() is None:
                time.sleep(0.05)
            (folder / "over").touch()
            job.wait(PATIENCE_S)
        finally:
            job.kill()
            job.wait()
        said.seek(0)
        missing = [file.name for file in files if not file.exists()]
        assert not missing, (missing, said.read().decode(errors="replace")[-3000:])
    return [json.loads(file.read_text()) for file in files]


@pytest.mark.parametrize("delay_s", [0.05, pytest.param(0.31, marks=pytest.mark.slow)])
def test_the_others_end_with_an_error(delay_s: float, tmp_path: Path) -> None:
    if mpi_launcher(find_mpiexec()).name == OPEN_MPI:
        pytest.skip("Open MPI's launcher ends all ranks of a job that has lost one, whatever they do")
    for said in endings(tmp_path, delay_s):
        assert said["wrong"] == 0
        assert said["right"] >= 18
        assert said["error"]
        assert said["seconds"] < LIMIT_S + 10
        assert said["next"], "a group that has lost a rank must refuse all later calls"
    output = (tmp_path / "said").read_text(errors="replace")
    assert f"rank {VICTIM} is gone" in output


def test_a_job_that_does_not_handle_errors_ends(tmp_path: Path) -> None:
    """As the launcher and MPI have it: all ranks end, and the job has failed."""
    table = write_table(tmp_path / "table", COLLECTIVES)
    rank = (sys.executable, "-m", "tests.live.job.mpi_endless", str(tmp_path), str(VICTIM), "0.1")
    command, environment = job_command(rank, {"CHORALE_TABLE": str(table)})
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert done.returncode != 0
