"""The msccl runner from a request to a measurement, on stand-ins for launcher, test programs and library."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from chorale.runners.api.base import FailureKind, Measurement, Outcome, ProgramSettings, RunRequest
from chorale.runners.api.registry import create_runner
from chorale.runners.msccl.commands import JobOptions, rocm_fault
from chorale.runners.msccl.runner import MscclRunner
from chorale.synth.programs.program import Program, Protocol
from chorale.synth.topology.spec import parse_topology
from tests.conformance.example_programs import ring_allgather, ring_allreduce, ring_reduce_scatter, with_swapped_offset
from tests.conformance.runner_kit import failed, measured
from tests.stand_ins.nccl_tests import (
    LIBRARY_BYTES_PER_US,
    LIBRARY_US,
    PROGRAM_BYTES_PER_US,
    PROGRAM_US,
    PROTOCOLS,
    TREE_US,
)

Cluster = Callable[..., Path]
SIZES = (2**18, 2**20, 2**22)
TARGETS = {"msccl": "msccl-xml", "executor": "msccl-executor-xml", "rccl": "msccl-executor-xml"}
RING = replace(ring_allreduce(range(4)), target="msccl-xml")


def _request(program: Program = RING, **others: object) -> RunRequest:
    request = RunRequest(parse_topology("ring:4"), {"ring": program}, SIZES, repeats=1, timeout_s=60.0)
    return replace(request, **others)  # type: ignore[arg-type]


def _submit(request: RunRequest, **options: object) -> Outcome:
    return MscclRunner(replace(JobOptions((1,)), **options)).submit(request)  # type: ignore[arg-type]


def _modes(folder: Path) -> list[str]:
    """Return the modes of all launches, in order."""
    lines = (folder / "launches.txt").read_text().splitlines()
    return [line.partition("rank.sh ")[2].split()[0] for line in lines]


def _times_us(outcome: Outcome, name: str) -> list[float]:
    return [one.median_s * 1e6 for one in measured(outcome).results[name]]


@pytest.mark.parametrize("table", ["old", "new"])
@pytest.mark.parametrize("runtime", TARGETS)
def test_programs_and_library_are_measured_in_turns(cluster: Cluster, runtime: str, table: str) -> None:
    folder = cluster(runtime, table=table)
    program = replace(RING, target=TARGETS[runtime])
    outcome = _submit(_request(program, repeats=3, library=("nccl",)), runtime=runtime)
    assert _times_us(outcome, "ring") == pytest.approx([PROGRAM_US + s / PROGRAM_BYTES_PER_US for s in SIZES], abs=0.01)
    library = [LIBRARY_US + size / LIBRARY_BYTES_PER_US for size in SIZES]
    assert _times_us(outcome, "library:nccl") == pytest.approx(library, abs=0.01)
    assert all(len(one.times_s) == 3 for one in measured(outcome).results["ring"])
    modes = _modes(folder)
    assert modes[0] == "proof"
    assert [sorted(modes[turn : turn + 2]) for turn in (1, 3, 5)] == [["library", "program"]] * 3
    facts = measured(outcome).environment
    assert (facts["runtime"], facts["gpu"], facts["ranks"]) == (runtime, "Stand-in GPU", 4)


@pytest.mark.parametrize("runtime", ["msccl", "executor"])
def test_the_library_may_be_told_which_algorithm_to_take(cluster: Cluster, runtime: str) -> None:
    folder = cluster(runtime)
    request = _request(replace(RING, target=TARGETS[runtime]), library=("tree", "ring"))
    outcome = _submit(request, runtime=runtime)
    for name, start_us in (("tree", TREE_US), ("ring", LIBRARY_US)):
        expected = [start_us + size / LIBRARY_BYTES_PER_US for size in SIZES]
        assert _times_us(outcome, f"library:{name}") == pytest.approx(expected, abs=0.01)
    # Where the log tells no calls, the library's own choice is launched besides: programs fall back to that.
    witness = ["library"] if runtime == "msccl" else []
    assert sorted(_modes(folder)) == sorted(["proof", "program", "library-ring", "library-tree", *witness])
    assert set(measured(outcome).results) == {"ring", "library:tree", "library:ring"}
    gather = replace(ring_allgather(4, in_place=True), target=TARGETS[runtime])
    refused = failed(_submit(_request(gather, library=("tree",)), runtime=runtime), FailureKind.REJECTED)
    assert "no algorithm of its own named tree: it has nccl, ring" in refused.message


def test_the_order_of_launches_is_fixed_by_the_seed(cluster: Cluster) -> None:
    folder = cluster()
    orders = []
    for seed in (0, 0, 5):
        (folder / "launches.txt").unlink(missing_ok=True)
        measured(_submit(_request(repeats=3, library=("nccl",), seed=seed)))
        orders.append(_modes(folder))
    assert orders[0] == orders[1] != orders[2]


@pytest.mark.parametrize(
    "program", [ring_allgather(4, in_place=True), ring_allgather(4, in_place=False), ring_reduce_scatter(4)]
)
def test_other_collectives_and_placements(cluster: Cluster, program: Program) -> None:
    cluster("executor")
    outcome = _submit(_request(replace(program, target="msccl-executor-xml"), sizes_bytes=(10**6,)))
    (one,) = measured(outcome).results["ring"]
    assert (one.requested_bytes, one.size_bytes) == (10**6, 10**6)
    assert one.median_s * 1e6 == pytest.approx(PROGRAM_US + 10**6 / PROGRAM_BYTES_PER_US, abs=0.01)


def test_sizes_are_rounded_up_to_what_the_program_serves(cluster: Cluster) -> None:
    cluster()
    (one, other) = measured(_submit(_request(sizes_bytes=(1001, 2**20)))).results["ring"]
    assert (one.requested_bytes, one.size_bytes, other.size_bytes) == (1001, 1008, 2**20)


@pytest.mark.parametrize("protocol", ["Simple", "LL"])
def test_buffers_are_a_setting_of_each_program(cluster: Cluster, protocol: Protocol) -> None:
    cluster("executor")
    program = replace(RING, target="msccl-executor-xml", protocol=protocol)
    request = _request(replace(program), programs={"small": program, "usual": program}, library=("nccl",))
    outcome = _submit(replace(request, settings={"small": ProgramSettings(buffer_bytes=2**18)}))
    start_us, bytes_per_us = PROTOCOLS[protocol]
    expected = [start_us + 4 * size / bytes_per_us for size in SIZES]
    assert _times_us(outcome, "small") == pytest.approx(expected, abs=0.01)
    assert _times_us(outcome, "usual")[2] < expected[2]


@pytest.mark.parametrize("runtime", TARGETS)
def test_a_silent_fall_back_is_rejected(cluster: Cluster, runtime: str) -> None:
    cluster(runtime, "fall-back")
    failure = failed(_submit(_request(replace(RING, target=TARGETS[runtime])), runtime=runtime), FailureKind.REJECTED)
    sign = "its times are the library's at every size" if runtime == "msccl" else "0 calls that the program executed"
    assert "program ring fell back" in failure.message
    assert sign in failure.message


def test_a_fall_back_at_some_sizes_is_rejected_where_calls_are_logged(cluster: Cluster) -> None:
    cluster("executor", "fall-back above 1 MiB")
    failure = failed(_submit(_request(replace(RING, target="msccl-executor-xml"))), FailureKind.REJECTED)
    assert "has 4 calls that the program executed, of at least 6" in failure.message


def test_a_rank_that_refuses_the_program_is_named(cluster: Cluster) -> None:
    cluster("msccl", "half-loaded")
    failure = failed(_submit(_request()), FailureKind.REJECTED)
    assert "only 3 of 4 ranks took the program: MSCCL: algorithm" in failure.message


def test_a_program_that_is_as_fast_as_the_library_counts_as_one_that_fell_back(cluster: Cluster) -> None:
    cluster("msccl", "as fast as the library")
    request = _request(sizes_bytes=(4096,), library=("nccl",))
    assert "apart by 4KiB 0.0%" in failed(_submit(request), FailureKind.REJECTED).message
    cluster("executor", "as fast as the library")
    measured(_submit(replace(request, programs={"ring": replace(RING, target="msccl-executor-xml")})))


def test_a_program_that_was_seen_to_run_may_be_as_fast_as_the_library_elsewhere(cluster: Cluster) -> None:
    cluster("msccl")
    runner = MscclRunner(JobOptions((1,)))
    measured(runner.submit(_request()))
    cluster("msccl", "as fast as the library")
    measured(runner.submit(_request(sizes_bytes=(4096,))))


@pytest.mark.parametrize(
    ("fault", "kind", "message"),
    [
        ("wrong", FailureKind.WRONG_RESULT, "program ring: 12 checks of results failed"),
        ("crash", FailureKind.CRASH, "Test NCCL failure common.cu:958 'unhandled cuda error'; its table has 1 rows"),
        ("cut off", FailureKind.CRASH, "the output breaks off; its table has 1 rows"),
        ("missing library", FailureKind.UNAVAILABLE, "error while loading shared libraries: libnccl.so.2"),
        ("no mpi", FailureKind.UNAVAILABLE, "4 tables of 1 ranks instead of 1 of 4: build them with MPI=1"),
    ],
)
def test_launches_that_go_wrong(cluster: Cluster, fault: str, kind: FailureKind, message: str) -> None:
    cluster(fault=fault)
    assert message in failed(_submit(_request()), kind).message


def test_a_program_that_computes_something_else_is_found_by_the_test_program(cluster: Cluster) -> None:
    cluster()
    failed(_submit(_request(with_swapped_offset(RING, 2))), FailureKind.WRONG_RESULT)


def test_a_hang_is_a_timeout_and_leaves_nothing(cluster: Cluster, tmp_path: Path) -> None:
    cluster(fault="hang")
    shared = tmp_path / "shared"
    shared.mkdir()
    start_s = time.monotonic()
    outcome = MscclRunner(JobOptions((1,)), shared).submit(_request(timeout_s=3.0))
    assert time.monotonic() - start_s < 3.0 + 5.0
    assert "its table has" in failed(outcome, FailureKind.TIMEOUT).message
    assert list(shared.iterdir()) == []


def test_what_was_proven_is_not_proven_again(cluster: Cluster) -> None:
    folder = cluster()
    runner = MscclRunner(JobOptions((1,)))
    for sizes in (SIZES, SIZES[:2], (*SIZES, 2**24)):
        measured(runner.submit(_request(sizes_bytes=sizes)))
    assert [index for index, mode in enumerate(_modes(folder)) if mode == "proof"] == [0, 5]


def test_a_machine_without_launcher_or_test_programs_is_unavailable(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = cluster()
    monkeypatch.setenv("PATH", str(folder))  # the machine of the tests may have launchers
    (folder / "all_reduce_perf").unlink()
    assert "no all_reduce_perf here" in failed(_submit(_request()), FailureKind.UNAVAILABLE).message
    (folder / "srun").unlink()
    assert "no srun here" in failed(_submit(_request(), launcher="srun"), FailureKind.UNAVAILABLE).message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"programs": {"a": RING, "b": ring_allreduce(range(4), in_place=False)}}, "must be of one placement"),
        ({"programs": {"a": replace(RING, target="oneccl-xml")}}, "got oneccl-xml; lower it with --target"),
        ({"programs": {"a": replace(RING, max_bytes=2**18)}}, "serves 0 to 262144 bytes, not 1048576"),
        ({"library": ("nvls",)}, "no algorithm of its own named nvls: it has nccl, ring, tree"),
        ({"dtype": "complex64"}, "element type complex64 is not supported"),
    ],
)
def test_requests_that_cannot_run_are_rejected(cluster: Cluster, change: dict[str, object], message: str) -> None:
    cluster()
    assert message in failed(_submit(_request(**change)), FailureKind.REJECTED).message


def test_hosts_need_a_shared_folder_and_one_gpu_for_each_rank(cluster: Cluster, tmp_path: Path) -> None:
    folder = cluster()
    options = {"hosts": "gpu-a, gpu-b", "gpus_per_node": "2"}
    failed(create_runner("msccl", options).submit(_request()), FailureKind.UNAVAILABLE)
    shared = {**options, "shared_folder": str(tmp_path), "variables": "NCCL_SOCKET_IFNAME=eth0"}
    outcome = create_runner("msccl", shared).submit(_request())
    assert isinstance(outcome, Measurement)
    assert outcome.environment["variables"] == "NCCL_SOCKET_IFNAME=eth0"
    assert "--host gpu-a:2,gpu-b:2" in (folder / "launches.txt").read_text()
    three = create_runner("msccl", {**shared, "hosts": "a,b,c"}).submit(_request())
    assert "exactly 4 GPUs" in failed(three, FailureKind.REJECTED).message


@pytest.mark.parametrize(("version", "executes"), [("7.12.0-38\n", True), ("7.13.0\n", False), ("8.0\n", False)])
def test_rccl_without_msccl_is_refused(tmp_path: Path, version: str, executes: bool) -> None:
    (tmp_path / ".info").mkdir()
    (tmp_path / ".info" / "version").write_text(version)
    fault = rocm_fault("rccl", str(tmp_path))
    assert (fault is None) is executes
    assert executes or "nccl runner" in str(fault)
