"""The msccl runner on the stand-in library, which loads programs and falls back as the runtimes do."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chorale.runners.api.base import FailureKind, Outcome, ProgramSettings, RunRequest
from chorale.runners.engine.build import has_compiler
from chorale.runners.msccl.commands import rocm_fault
from chorale.runners.msccl.config import MscclConfig
from chorale.runners.msccl.runner import MscclRunner
from chorale.synth.programs.program import Program
from tests.conformance.example_programs import ring_allgather, ring_allreduce, ring_reduce_scatter
from tests.conformance.runner_kit import RING, failed, measured, request_of
from tests.stand_ins.nccl import stand_in_library

pytestmark = pytest.mark.skipif(not has_compiler(), reason="THE MSCCL RUNNER IS NOT TESTED: apt-get install g++")

SIZES = (2**18, 2**22)
EXECUTED = replace(RING, target="msccl-executor-xml")
TARGETS = {"msccl": "msccl-xml", "executor": "msccl-executor-xml", "rccl": "msccl-executor-xml"}


@pytest.fixture
def libraries(tmp_path: Path) -> str:
    for name in ("libnccl.so", "librccl.so"):
        (tmp_path / name).symlink_to(stand_in_library())
    return str(tmp_path)


def runner_of(folder: str, runtime: str = "executor", fault: str = "", slowness: int = 5) -> MscclRunner:
    variables = {"STAND_IN_RUNTIME": runtime, "STAND_IN_FAULT": fault, "STAND_IN_SLOWNESS": str(slowness)}
    options: Any = {"runtime": runtime, "library_folder": folder, "memory": "host", "iterations": 1}
    return MscclRunner(MscclConfig(**options, variables=variables))


def asked(runtime: str = "executor", program: Program = RING, **others: object) -> RunRequest:
    programs = {"ring": replace(program, target=TARGETS[runtime])}
    changes = {"programs": programs, "sizes_bytes": SIZES, "repeats": 2, "timeout_s": 150.0, **others}
    return replace(request_of(RING), **changes)  # type: ignore[arg-type]


def submitted(folder: str, runtime: str = "executor", fault: str = "", **others: object) -> Outcome:
    with runner_of(folder, runtime, fault) as runner:
        return runner.submit(asked(runtime, **others))  # type: ignore[arg-type]


@pytest.mark.parametrize("runtime", TARGETS)
def test_programs_are_measured_beside_the_library(libraries: str, runtime: str) -> None:
    outcome = measured(submitted(libraries, runtime, library=("nccl", "ring", "tree")))
    assert set(outcome.results) == {"ring", "library:nccl", "library:ring", "library:tree"}
    own, tree = outcome.results["ring"], outcome.results["library:tree"]
    assert own[1].min_s < tree[1].min_s
    assert all(len(one.times_s) == 2 for one in own)
    facts = outcome.environment
    assert (facts["runtime"], facts["launcher"], facts["iterations"]) == (runtime, "local", 1)


@pytest.mark.parametrize(
    "program", [ring_allgather(4, in_place=True), ring_allgather(4, in_place=False), ring_reduce_scatter(4)]
)
def test_other_collectives_and_placements(libraries: str, program: Program) -> None:
    (one,) = measured(submitted(libraries, program=program, sizes_bytes=(10**6 - 1,))).results["ring"]
    assert (one.requested_bytes, one.size_bytes) == (10**6 - 1, 10**6)


def test_buffers_are_a_setting_of_each_program(libraries: str) -> None:
    program = replace(EXECUTED, protocol="LL")
    programs = {"small": program, "usual": program}
    settings = {"small": ProgramSettings(buffer_bytes=2**20)}
    results = measured(submitted(libraries, programs=programs, settings=settings, library=("nccl",))).results
    assert results["small"][1].min_s > 2 * results["usual"][1].min_s


@pytest.mark.parametrize(
    ("runtime", "fault", "message"),
    [
        ("rccl", "fall-back", "shows 0 calls that the program executed, instead of at least 2"),
        ("executor", "fall-back above 1 MiB", "shows 2 calls that the program executed, instead of at least 4"),
        ("msccl", "half-loaded", "only 3 of 4 ranks loaded the program: MSCCL: algorithm"),
    ],
)
def test_a_fall_back_is_rejected(libraries: str, runtime: str, fault: str, message: str) -> None:
    failure = failed(submitted(libraries, runtime, fault), FailureKind.REJECTED)
    assert "program ring fell back" in failure.message
    assert message in failure.message


def test_times_like_the_librarys_are_a_fall_back_where_no_calls_are_logged(libraries: str) -> None:
    with runner_of(libraries, "msccl", "fall-back", slowness=500) as runner:
        failure = failed(runner.submit(asked("msccl", sizes_bytes=(2**14,))), FailureKind.REJECTED)
    assert "its times equal the library's at every size" in failure.message
    measured(submitted(libraries, fault="like the library"))


def test_a_wrong_result_a_hang_and_a_missing_library_are_found(libraries: str) -> None:
    failed(submitted(libraries, fault="wrong"), FailureKind.WRONG_RESULT)
    failed(submitted(libraries, fault="hang", timeout_s=2.0), FailureKind.TIMEOUT)
    failed(submitted("/none"), FailureKind.UNAVAILABLE)


def test_what_was_proven_is_not_proven_again(libraries: str) -> None:
    with runner_of(libraries) as runner:
        measured(runner.submit(asked()))
        proofs = [ranks for (_, logs), ranks in runner._group._sets.items() if logs]  # type: ignore[union-attr]
        measured(runner.submit(asked(sizes_bytes=SIZES[:1])))
        after = [ranks for (_, logs), ranks in runner._group._sets.items() if logs]  # type: ignore[union-attr]
    assert [ranks.pids for ranks in after] == [ranks.pids for ranks in proofs]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"programs": {"a": RING, "b": ring_allreduce(range(4), in_place=False)}}, "must be of one placement"),
        ({"programs": {"a": replace(RING, target="oneccl-xml")}}, "got oneccl-xml; lower it with --target"),
        ({"programs": {"a": replace(EXECUTED, max_bytes=2**18)}}, "is for 0 to 262144 bytes, not 4194304"),
        ({"library": ("nvls",)}, "no algorithm of its own named nvls: it has nccl, ring, tree"),
    ],
)
def test_requests_that_cannot_run_are_rejected(change: dict[str, object], message: str) -> None:
    assert message in failed(submitted("/none", **change), FailureKind.REJECTED).message


@pytest.mark.parametrize(("version", "executes"), [("7.12.0-38\n", True), ("7.13.0\n", False), ("8.0\n", False)])
def test_rccl_without_msccl_is_refused(tmp_path: Path, version: str, executes: bool) -> None:
    (tmp_path / ".info").mkdir()
    (tmp_path / ".info" / "version").write_text(version)
    fault = rocm_fault("rccl", str(tmp_path))
    assert (fault is None) is executes
    assert executes or "nccl runner" in str(fault)
