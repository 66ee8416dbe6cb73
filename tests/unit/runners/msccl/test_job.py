"""Job folders: golden text, what they refuse, scripts that a shell really executes, and runtimes for programs."""

import subprocess
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from chorale.runners.msccl.commands import (
    EXECUTOR,
    MSCCL,
    RCCL,
    RUNTIMES,
    JobOptions,
    runtime_for,
    served_size,
    size_progressions,
)
from chorale.runners.msccl.job_files import job_files
from chorale.runners.msccl.results import log_fault
from chorale.runners.process_launch.slurm import launch_command
from chorale.synth.collective import ALLTOALL
from chorale.synth.errors import InvalidInput
from chorale.synth.programs.program import Program
from chorale.synth.targets.lift import lift
from tests.conformance.example_programs import ring_allgather, ring_allreduce, star_broadcast

GOLDEN = Path(__file__).parents[3] / "golden" / "msccl-job"
OPTIONS = JobOptions((2**20, 2**22, 2**24), hosts=("gpu-a", "gpu-b"))


def _allreduce(target: str = "msccl-xml", in_place: bool = True) -> Program:
    return replace(ring_allreduce(range(4), in_place=in_place), target=target, name="ring")


JOBS = {
    "msccl": (_allreduce(), replace(OPTIONS, library_folder="/opt/msccl/lib")),
    "executor": (
        replace(ring_allgather(4, in_place=False), target="msccl-executor-xml", name="gather", protocol="LL128"),
        JobOptions((2**20, 3 * 2**20), launcher="srun", tests_folder="/opt/nccl-tests/build", gpus_per_node=2),
    ),
    "rccl": (_allreduce("msccl-executor-xml"), replace(OPTIONS, runtime="rccl", dtype="float64")),
}


@pytest.mark.parametrize("name", JOBS)
def test_golden_folders(name: str) -> None:
    folder = GOLDEN / name
    files = job_files(*JOBS[name])
    assert {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} == set(files)
    for path, content in files.items():
        assert content.decode() == (folder / path).read_text(), path
    if "algorithms/program.xml" in files:
        assert lift(files["algorithms/program.xml"]) == JOBS[name][0]


def _write(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(0o755 if name.endswith((".sh", ".sbatch")) else 0o644)


@pytest.mark.parametrize(("mode", "iterations"), [("program", "50"), ("proof", "2"), ("library", "50")])
def test_the_scripts_reach_every_rank_with_its_environment(tmp_path: Path, mode: str, iterations: str) -> None:
    job = tmp_path / "a job's folder"
    _write(job, dict(job_files(*JOBS["msccl"])))
    tools = tmp_path / "tools"
    tools.mkdir()
    # A stand-in for mpirun that starts one rank, and one for the test program that says what it was told.
    (tools / "mpirun").write_text('#!/bin/sh\nwhile [ "${1##*/}" != rank.sh ]; do shift; done\nexec "$@"\n')
    (tools / "all_reduce_perf").write_text('#!/bin/sh\necho "$@"\nenv\n')
    for tool in tools.iterdir():
        tool.chmod(0o755)
    environment = {"PATH": f"{tools}:/usr/bin:/bin", "LD_LIBRARY_PATH": "/usr/x", "MSCCL_XML_FILES": "stale"}
    done = subprocess.run([job / "run.sh", mode], env=environment, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[0] == f"-b 1048576 -e 16777216 -f 4 -d float -o sum -g 1 -c 1 -a 1 -n {iterations} -w " + (
        "1" if mode == "proof" else "20"
    )
    told = dict(line.split("=", 1) for line in lines[1:] if "=" in line)
    assert told["LD_LIBRARY_PATH"] == "/opt/msccl/lib:/usr/x"
    assert told["NCCL_DEBUG_FILE"] == f"{job}/logs/{mode}.0.%h.%p.txt"
    assert told.get("MSCCL_XML_FILES") == (None if mode == "library" else f"{job}/algorithms/program.xml")
    assert told.get("NCCL_ALGO") == (None if mode == "library" else "MSCCL,RING,TREE")
    assert told["NCCL_DEBUG"] == ("INFO" if mode == "proof" else "WARN")


def test_values_of_variables_are_only_values_and_an_unknown_mode_is_refused(tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    program, options = JOBS["msccl"]
    folder = f"/$(touch {trap})`touch {trap}`\"'"
    _write(tmp_path, dict(job_files(program, replace(options, library_folder=folder))))
    command = ["/bin/sh", "-c", '. environment/program.sh; printf %s "$LD_LIBRARY_PATH"']
    environment = {"CHORALE_JOB": "", "CHORALE_PART": ""}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == folder
    assert not trap.exists()
    done = subprocess.run([tmp_path / "run.sh", "fast"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "usage: ./run.sh program | proof | library\n")


@pytest.mark.parametrize(
    ("program", "change", "message"),
    [
        (_allreduce(), {"sizes_bytes": (2**20 + 4,)}, "cannot be cut into 4 chunks, got 1048580 bytes"),
        (replace(_allreduce(), max_bytes=2**21), {}, "it is for 0 to 2097152 bytes, got 4194304 bytes"),
        (_allreduce(), {"sizes_bytes": (2**31,)}, "it is for 0 to 2147483647 bytes, got 2147483648"),
        (_allreduce(), {"runtime": "executor"}, "got msccl-xml; lower it with --target msccl-exec"),
        (_allreduce("oneccl-xml"), {}, "got oneccl-xml; lower it with --target msccl-executor-xml or msccl-xml"),
        (_allreduce(), {"runtime": "nccl"}, "did you mean 'rccl' or 'msccl'? choose from msccl, executor, rccl"),
        (_allreduce(), {"hosts": ("a", "b", "c")}, "exactly 4 GPUs, one per rank, got 3 hosts with 2"),
        (_allreduce(), {"hosts": (), "gpus_per_node": 3}, "gpus_per_node must divide the 4 ranks, got 3"),
        (replace(_allreduce(), collective=ALLTOALL), {}, "calls of alltoall are never in place"),
    ],
)
def test_jobs_that_would_fall_back_or_not_start_are_refused(
    program: Program, change: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        job_files(program, replace(OPTIONS, **change))  # type: ignore[arg-type]
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sizes_bytes": ()}, "at least one size above zero"),
        ({"dtype": "complex64"}, "unknown element type of a job"),
        ({"gpus_per_node": 0}, "gpus_per_node must be above zero"),
        ({"hosts": ("a;reboot",)}, "'a;reboot' is not the name or address of a host"),
        ({"hosts": ("-x",)}, "' is not the name or address of a host"),
        ({"tests_folder": "build"}, "the folder build is relative"),
    ],
)
def test_bad_options_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        replace(OPTIONS, **change)  # type: ignore[arg-type]


def test_sizes_are_rounded_up_to_what_every_runtime_takes_and_become_as_few_ranges_as_they_can() -> None:
    assert size_progressions([64, 16, 4, 256]) == [((4, 16, 64, 256), 4)]
    assert size_progressions([7]) == [((7,), 2)]
    assert size_progressions([4, 6, 8]) == [((4, 8), 2), ((6,), 2)]
    for sizes in ([3, 4, 5, 6], [1, 2, 4, 8, 24, 72], [5, 7, 11, 10, 20, 21]):
        ranges = size_progressions(sizes)
        assert sorted(size for series, _ in ranges for size in series) == sorted(sizes)
        assert all(list(series) == _run(series[0], series[-1], factor) for series, factor in ranges)
    gather = ring_allgather(4, in_place=True)  # 4 chunks: 4 elements for each of 4 ranks
    assert served_size(1, 4, [gather]) == 64
    assert served_size(65, 4, [gather, replace(gather, chunks=12)]) == 4 * 48
    assert served_size(1, 8, [_allreduce()]) == 32
    assert served_size(1, 4, [star_broadcast(5, root=2)]) % (4 * star_broadcast(5, root=2).chunks) == 0


def _run(first: int, last: int, factor: int) -> list[int]:
    """Return what a test program runs for -b first -e last -f factor."""
    sizes = [first]
    while sizes[-1] * factor <= last:
        sizes.append(sizes[-1] * factor)
    return sizes


def test_launchers_put_one_rank_on_every_gpu_host_by_host() -> None:
    hosts = ("a", "b")
    assert launch_command("openmpi", 16, hosts, 8) == [
        *("mpirun", "-np", "16", "--map-by", "ppr:8:node", "--host", "a:8,b:8")
    ]
    assert launch_command("mpich", 16, hosts, 8) == ["mpiexec", "-n", "16", "-ppn", "8", "-hosts", "a,b"]
    assert launch_command("srun", 16, hosts, 8) == [
        *("srun", "--mpi=$CHORALE_MPI", "--overlap", "--kill-on-bad-exit=1", "--job-name=$CHORALE_STEP", "--nodes=2"),
        *("--ntasks=16", "--distribution=arbitrary", f"--nodelist={','.join(['a'] * 8 + ['b'] * 8)}"),
    ]
    assert launch_command("srun", 16, (), 8, mpi="none")[-2:] == ["--ntasks-per-node=8", "--distribution=block"]
    assert launch_command("openmpi", 8, (), None) == ["mpirun", "-np", "8", "--map-by", "ppr:8:node"]


def test_only_the_oldest_runtime_needs_times_as_evidence_and_a_launcher_that_logs_is_no_rank() -> None:
    assert [one.name for one in RUNTIMES.values() if one.scheduled is None] == [MSCCL.name]
    assert runtime_for("msccl", _allreduce("msccl-xml")) is MSCCL
    assert runtime_for(None, _allreduce("msccl-executor-xml")) is EXECUTOR
    head = "gpu07:4711:4790 [3] NCCL INFO "
    loaded = f"{head}Using MSCCL Algo files from /job/algorithms\n{head}MSCCL: Initialization finished\n"
    log = loaded + 4 * f"{head}MSCCL: Setup Kernel finished, smem 4096\n"
    assert log_fault(EXECUTOR, [f"{head}NCCL version 2.23.4", *[log] * 4], 4, calls=4) is None


@pytest.mark.parametrize(("blocks", "fits"), [(64, True), (65, False)])
def test_a_runtime_takes_as_many_thread_blocks_as_it_says(blocks: int, fits: bool) -> None:
    program = _allreduce("msccl-executor-xml")
    last = program.ranks[-1]
    program = replace(program, ranks=(*program.ranks[:-1], replace(last, blocks=last.blocks[:1] * blocks)))
    assert runtime_for("executor", program) is EXECUTOR
    with nullcontext() if fits else pytest.raises(InvalidInput, match="--sm-count 64"):
        assert runtime_for("rccl", program) is RCCL
