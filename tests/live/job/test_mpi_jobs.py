"""MPI jobs under the preloaded library: served or refused, in all languages, on nodes, with a dead rank."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
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


def compiled(folder: Path, mpicc: Path | None = None, source: Path = PROGRAM) -> Path:
    program = folder / source.stem
    subprocess.run([mpicc or compiler(), "-O2", "-Wall", "-Wextra", "-Werror", source, "-o", program], check=True)
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


def written(folder: Path) -> tuple[dict[str, str], Callable[[], dict[str, Any]]]:
    """Return the variable that asks for a report in `folder`, and what reads it."""
    report = folder / "report.json"
    return {"CHORALE_REPORT": str(report)}, lambda: json.loads(report.read_text())


def all_right(program: Path, environment: Mapping[str, str], *arguments: str, preload: Path | None = None) -> None:
    done = run_job((program, *arguments), environment, preload)
    assert done.returncode == 0, done.stderr
    assert "all right" in done.stdout


def test_a_c_program_runs_tuned_programs_and_its_record_is_the_same_as_by_mpi(program: Path, tmp_path: Path) -> None:
    served = set(COLLECTIVES) - {"alltoall"}
    table = write_table(tmp_path / "table", tuple(sorted(served)))
    reporting, report = written(tmp_path)
    records = {}
    for name, environment in (("mpi", {}), ("programs", {"CHORALE_TABLE": str(table), **reporting})):
        all_right(program, {**environment, "CHORALE_RECORD": str(tmp_path / name)}, "16384", "2")
        records[name] = read_record(tmp_path / name)
    counts = {key: count.calls for key, count in records["programs"].calls.items()}
    assert counts == {key: count.calls for key, count in records["mpi"].calls.items()}
    assert (records["mpi"].ranks, {key.dtype for key in counts}) == (RANKS, {"float32"})
    assert {key.root for key in counts if key.collective == "reduce"} == {1}
    total: dict[str, tuple[int, int]] = {}
    for key, calls in counts.items():
        before = total.get(key.collective, (0, 0))
        total[key.collective] = (before[0] + calls, before[1] + calls * key.size_bytes)
    assert set(total) == set(COLLECTIVES)
    [fallback] = report()["fallbacks"]
    assert fallback["reason"] == "collective not in the table"
    found = {each["collective"]: (each["calls"], each["bytes"]) for each in (*report()["programs"], fallback)}
    assert found == total


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
    reporting, report = written(tmp_path)
    done = run_job((sys.executable, "-c", PYTHON), {"CHORALE_TABLE": str(table), **reporting})
    assert done.returncode == 0, done.stderr
    counted = report()
    assert [(e["collective"], e["calls"], e["bytes"]) for e in counted["programs"]] == [("allreduce", 1, 8000)]
    assert {e["reason"] for e in counted["fallbacks"]} == {"group not in the table"}


def test_what_strict_refuses_and_a_rank_that_stalls_are_errors_that_say_so(
    program: Path, tmp_path: Path, table: Path
) -> None:
    narrow = write_table(tmp_path / "table", ("allreduce",), min_bytes=64)
    done = run_job((program, "1024", "1"), {"CHORALE_TABLE": str(narrow), "CHORALE_STRICT": "1"})
    assert done.returncode != 0
    assert "allreduce of 4 bytes: CHORALE_STRICT refuses it: size not in the table" in done.stderr
    assert "Chorale: allreduce: CHORALE_STRICT refuses it" in done.stderr  # as the text of an error class of its own
    done = run_job((program, "4", "1", "2"), {"CHORALE_TABLE": str(table), "CHORALE_TIMEOUT_S": "3"}, limit_s=60.0)
    assert done.returncode != 0
    assert "allgather of 16 bytes" in done.stderr


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


@pytest.fixture
def abi_program(tmp_path: Path) -> Path:
    if mpi_launcher(find_mpiexec()).name == OPEN_MPI or not compiler("mpicc_abi").exists():
        pytest.skip("THE STANDARD ABI IS NOT TESTED ON THIS MACHINE: its MPI has no mpicc_abi; MPICH 5 has one")
    return compiled(tmp_path, compiler("mpicc_abi"))


@pytest.mark.slow
def test_a_program_of_another_mpi_is_refused_in_a_line(abi_program: Path, table: Path) -> None:
    done = run_job((abi_program, "1024", "1"), {"CHORALE_TABLE": str(table)})
    assert done.returncode != 0
    assert "all right" not in done.stdout
    said = {line for line in done.stderr.splitlines() if line.startswith("chorale:")}
    assert len(said) == 1
    [line] = said
    assert re.search(r"MPICH and its kin \(/[^,)]*/libmpi\.so\), and the program uses another MPI \(/[^,)]*\): b", line)
    assert "libmpi_abi.so.1" in line
    assert "chorale job mpi-preload" in line


@pytest.mark.slow  # another library is built
def test_a_library_of_its_own_serves_it(abi_program: Path, table: Path, tmp_path: Path) -> None:
    reporting, report = written(tmp_path)
    environment = {"CHORALE_TABLE": str(table), "CHORALE_STRICT": "1", **reporting}
    all_right(abi_program, environment, "65536", "2", preload=preload_library(mpicc=compiler("mpicc_abi")))
    assert {entry["collective"] for entry in report()["programs"]} == set(COLLECTIVES)
    assert report()["fallbacks"] == []


HERE = Path(__file__).parent
FORTRAN = {"mpif.h": 1, "use mpi": 2, "use mpi_f08": 3}


def languages() -> Iterator[list[str]]:
    yield [str(compiler("mpicxx")), str(HERE / "mpi_languages.cpp")]
    for form in FORTRAN.values() if compiler("mpifort").exists() else ():
        flags = [f"-DFORM={form}", "-fallow-argument-mismatch"]
        yield [str(compiler("mpifort")), *flags, str(HERE / "mpi_languages.F90")]


OTHERS = {"group not in the table", "call that does not wait for its result"}
"""Why the library serves calls of these programs, though the table is for all collectives."""


def test_calls_are_served_counted_or_refused(table: Path, tmp_path: Path) -> None:
    program = tmp_path / "program"
    reporting, report = written(tmp_path)
    variables = {"CHORALE_TABLE": str(table), **reporting}
    for build in languages():
        (tmp_path / "report.json").unlink(missing_ok=True)
        subprocess.run([*build, "-DPENDING", "-o", program], check=True, cwd=tmp_path)
        done = run_job((program,), variables)
        assert done.returncode == 0, (build, done)
        assert report()["programs"], build
        fell = {(each["collective"], each["reason"]): each["calls"] for each in report()["fallbacks"]}
        assert {reason for _, reason in fell} <= OTHERS
        assert fell["allreduce", "group not in the table"] == 1
        assert ("allreduce", "call that does not wait for its result") in fell
    done = run_job((program,), {**variables, "CHORALE_STRICT": "1"})
    assert "CHORALE_STRICT refuses it" in done.stderr + done.stdout
    subprocess.run([*next(languages()), "-o", program], check=True, cwd=tmp_path)
    assert run_job((program,), {**variables, "CHORALE_STRICT": "1"}).returncode == 0


SHAPE = "vector that ranks do not divide into equal shards"


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("uneven"), source=Path(__file__).with_name("mpi_uneven.c"))


def test_shards_of_different_sizes_are_served_and_right_to_the_byte(uneven: Path, tmp_path: Path) -> None:
    table = write_table(tmp_path / "t", ["allgather", "alltoall", "reduce_scatter"])
    reporting, report = written(tmp_path)
    done = run_job([uneven, "1000", "2"], {"CHORALE_TABLE": str(table), **reporting})
    assert done.returncode == 0, done.stderr
    calls = {entry["collective"]: entry["calls"] for entry in report()["programs"]}
    assert calls == {"allgather": 24, "alltoall": 24, "reduce_scatter": 9}  # of each call whose shards are not sparse
    assert report()["fallbacks"] == [{"reason": SHAPE, "collective": "alltoall", "calls": 8, "bytes": 192_000}]
    exchanges = report()["exchanges"]
    assert (exchanges["calls"], exchanges["bytes"]) == (32, 32 * 4 * 16)
    assert exchanges["seconds"] > 0


def test_what_the_table_does_not_cover_is_not_exchanged_and_refused_where_strict(uneven: Path, tmp_path: Path) -> None:
    table = write_table(tmp_path / "t", ["allgather", "reduce_scatter"])
    reporting, report = written(tmp_path)
    settings = {"CHORALE_TABLE": str(table), **reporting}
    assert run_job([uneven, "100", "1"], settings).returncode == 0
    assert report()["exchanges"]["calls"] == 0
    assert {entry["reason"] for entry in report()["fallbacks"]} == {"collective not in the table"}
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
    reporting, report = written(table.parent)
    assert "all right" in run_on_nodes(f"{program} 4096 {repeats}", table, node, ranks, **reporting, **environment)
    return report()


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
rank = MPI.COMM_WORLD.rank
for _ in range(4):
    mine, total = numpy.full(1000, rank + 1.0), numpy.zeros(1000)
    MPI.COMM_WORLD.Reduce(mine, total if rank == 5 else None, root=5)
    assert (total == (21 if rank == 5 else 0)).all()
    MPI.COMM_WORLD.Bcast(mine, root=5)
    assert (mine == 6).all()
"""


SPLIT = """
slices = MPI.COMM_WORLD.Split(MPI.COMM_WORLD.rank % 2)
mine, total = numpy.full(1000, slices.rank + 1.0), numpy.zeros(1000)
slices.Allreduce(mine, total)
assert (total == 10).all()
"""


@pytest.mark.parametrize(
    ("script", "node", "ranks"), [(ROOT_5, THREE_ON_1, 6), (SPLIT, BLOCKS, 8)], ids=("root", "split")
)
def test_a_root_without_partners_hands_over_and_one_rank_of_each_node_runs_the_program(
    script: str, node: str, ranks: int, table: Path, tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text(f"import numpy\nfrom mpi4py import MPI\n{script}")
    run_on_nodes(f"{sys.executable} {tmp_path}/script.py", table, node, ranks, CHORALE_STRICT="1")


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


def endless(folder: Path, delay_s: float) -> tuple[str, ...]:
    """Return the command of a rank; the victim kills itself after `delay_s`."""
    return sys.executable, "-m", "tests.live.job.mpi_endless", str(folder), str(VICTIM), str(delay_s)


def endings(folder: Path, table: Path, delay_s: float) -> list[dict[str, object]]:
    """Return what the surviving ranks say of a job of which one is killed after `delay_s`."""
    variables = {"CHORALE_TABLE": str(table), "CHORALE_STRICT": "1", "CHORALE_TIMEOUT_S": str(LIMIT_S)}
    command, environment = job_command(("/bin/sh", "-c", SUPERVISED, folder, *endless(folder, delay_s)), variables)
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
def test_the_others_end_with_an_error(delay_s: float, table: Path, tmp_path: Path) -> None:
    if mpi_launcher(find_mpiexec()).name == OPEN_MPI:
        pytest.skip("LOST RANKS ARE NOT TESTED WITH OPEN MPI, whose launcher ends all ranks then: pip install mpich")
    for said in endings(tmp_path, table, delay_s):
        assert said["wrong"] == 0
        assert said["right"] >= 18
        assert said["error"]
        assert said["seconds"] < LIMIT_S + 10
        assert said["next"], "a group that has lost a rank must refuse all later calls"
    output = (tmp_path / "said").read_text(errors="replace")
    assert f"rank {VICTIM} is gone" in output


def test_a_job_that_does_not_handle_errors_ends(table: Path, tmp_path: Path) -> None:
    """As the launcher and MPI have it: all ranks end, and the job has failed."""
    assert run_job(endless(tmp_path, 0.1), {"CHORALE_TABLE": str(table)}, limit_s=PATIENCE_S).returncode != 0
