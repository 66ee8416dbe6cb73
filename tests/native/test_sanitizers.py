"""The engine and the executor of plans: random programs and plans, and mutants of them, watched by sanitizers."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from chorale.runners.engine.library import NATIVE as ENGINE
from chorale.runners.plans.rank_plans import (
    NATIVE,
    PlanError,
    blocked_lines,
    check_words,
    encode_plan,
    load_plan_library,
    plan_library,
)
from chorale.synth.targets.mscclpp_text import parse_plan
from tests.conformance.plan_cases import document_of, without
from tests.native.driver import build_driver, write_tasks
from tests.native.plan_tasks import AWAY, STRICT, PlannedCall, case_of, case_tasks, random_tasks, run_plans, task_of


def run(sanitizer: str, folder: Path, tasks: int, calls: int, mutants: int, seed: int) -> str:
    file = folder / "tasks"
    write_tasks(file, seed, tasks, calls)
    command = [str(build_driver(sanitizer)), str(file), str(seed), str(mutants)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | STRICT, timeout=550, check=False)
    assert done.returncode == 0, f"{done.returncode}: {done.stderr[-4000:]}"
    assert not done.stderr, done.stderr[-4000:]
    return done.stdout


def test_the_driver_runs_what_python_wrote(tmp_path: Path) -> None:
    assert run("none", tmp_path, 5, 6, 100, 1).startswith("30 calls, ")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("sanitizer", "tasks", "calls", "mutants"), [("address", 60, 10, 300), ("thread", 40, 8, 0)])
def test_programs_under_a_sanitizer(tmp_path: Path, sanitizer: str, tasks: int, calls: int, mutants: int) -> None:
    assert run(sanitizer, tmp_path, tasks, calls, mutants, 2).startswith(f"{tasks * calls} calls, ")


def results(sanitizer: str, *tasks: bytes) -> tuple[str, list[str]]:
    """Run tasks of plans; return the last line, and the lines about blocks of ranks that were late."""
    done = run_plans(sanitizer, tasks)
    assert done.returncode == 0, f"{done.returncode}: {done.stderr[-4000:]}"
    assert not done.stderr, done.stderr[-4000:]
    *lines, last = done.stdout.splitlines()
    return last, [blocked_lines([int(word) for word in line.split()[2:]]) for line in sorted(lines)]


def test_random_plans_give_right_results_with_any_number_of_threads() -> None:
    last, _ = results("none", *random_tasks(1, 40, 3))
    assert last.startswith("40 plans, ")


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_what_is_not_finished_says_who_waits_for_whom(threads: int) -> None:
    plan = case_of("put", "a wait without a signal")
    _, waits = results("none", task_of(plan, [PlannedCall([threads] * 2, 1, 0.2, is_late=True)]))
    assert waits == [f"0 6 waits for signal 0 of rank {rank}\n" for rank in (1, 0)]


def test_a_rank_that_never_comes_is_named() -> None:
    _, waits = results("none", task_of(case_of("packets"), [PlannedCall([2, AWAY], 1, 0.2, is_late=True)]))
    assert waits == ["0 0 waits for rank 1 to begin\n"]


@pytest.mark.parametrize(
    ("after", "word", "told"), [(0, 1000, "parts of a pipeline that vectors do not fill"), (1, 2**40, "wrong length")]
)
def test_pipelines_are_refused_if_vectors_do_not_fill_them_or_they_never_end(after: int, word: int, told: str) -> None:
    words = encode_plan(case_of("pipeline"), 0)
    words[words.index(1024) + after] = word  # bytes of a part, then pieces of the pipeline
    with pytest.raises(PlanError, match=told):
        check_words(load_plan_library(plan_library()), words, 0, 2)


def test_the_source_compiles_for_gpus_of_amd(tmp_path: Path) -> None:
    clang = next(filter(None, map(shutil.which, ("clang++-17", "clang++-16", "clang++-15"))), None)
    if clang is None or not Path("/usr/include/hip/hip_runtime.h").exists():
        pytest.skip("there is no compiler for HIP here: install hipcc")
    bitcode = "/usr/lib/x86_64-linux-gnu/amdgcn/bitcode"
    options = ["--offload-device-only", "--offload-arch=gfx90a", "--rocm-path=/usr"]
    folders = [f"--rocm-device-lib-path={bitcode}", *(f"-I{folder}" for folder in (NATIVE, ENGINE))]
    source, assembly = Path(__file__).parent / "plan_kernel_amd.hip", tmp_path / "amd.s"
    command = [clang, "-x", "hip", *options, "-O1", "-S", "-std=c++17", *folders, str(source), "-o", str(assembly)]
    subprocess.run(command, check=True, timeout=250)
    assert {"s_barrier", "flat_atomic_add_x2", "s_endpgm"} <= set(assembly.read_text().split())


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("sanitizer", "mutants"), [("thread", 0), ("address", 3)])
def test_plans_under_a_sanitizer(sanitizer: str, mutants: int) -> None:
    last, waits = results(sanitizer, *case_tasks(), *random_tasks(5, 1000, mutants))
    assert last.startswith(f"{1000 + len(waits)} plans, ")  # a rank of each case stays away at the end
    assert all("waits for" in each for each in waits)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_sanitizer_sees_a_plan_with_a_race() -> None:
    document = document_of("put", "another chunk")  # rank 1 writes what rank 0 reads
    without(1, 2)(document)  # and nothing orders this, whichever runs first: each signals and waits only afterwards
    racy = parse_plan(json.dumps(document).encode())
    done = run_plans("thread", [task_of(racy, [PlannedCall([1, 1])])])
    assert "data race" in done.stderr
