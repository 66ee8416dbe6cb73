"""The engine and the executor of plans: random programs and plans, and mutants of them, watched by sanitizers."""

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from chorale.runners.engine.build import find_compiler
from chorale.runners.engine.library import NATIVE as ENGINE
from chorale.runners.plans.rank_plans import NATIVE
from chorale.synth.targets.mscclpp_reading import parse_plan
from tests.conformance.plan_cases import document_of
from tests.native.driver import SANITIZERS, build_driver, write_tasks
from tests.native.plan_ranks import PlanRanks, check_random_plan, library_for

STRICT = {
    "ASAN_OPTIONS": "detect_leaks=1:allocator_may_return_null=1:max_allocation_size_mb=512:"
    "detect_stack_use_after_return=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1",
}
_RUNTIMES = {"thread": ("libtsan.so",), "address": ("libasan.so", "libubsan.so")}
_RACE = """
import json, sys
from pathlib import Path
from tests.conformance.plan_cases import document_of, without
from tests.native.plan_ranks import PlanRanks
from chorale.synth.targets.mscclpp_reading import parse_plan
document = document_of("put", "another chunk")  # rank 1 writes what rank 0 reads
without(1, 2)(document)  # and nothing orders this, whichever runs first: each signals and waits only afterwards
ranks = PlanRanks(parse_plan(json.dumps(document).encode()), Path(sys.argv[1]))
ranks.bind(4096, "float32")
list(ranks.complaints(4096, "float32", [1, 1], 1))
"""


def run(sanitizer: str, folder: Path, tasks: int, calls: int, mutants: int, seed: int) -> str:
    """Run the driver; return what it says at the end."""
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


def watched(sanitizer: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python with a sanitizer's executor, whose path is put where `words` say LIBRARY."""
    library = str(library_for(sanitizer, SANITIZERS[sanitizer]))
    places = [
        subprocess.run([*find_compiler(), f"-print-file-name={name}"], capture_output=True, text=True, check=True)
        for name in _RUNTIMES[sanitizer]
    ]
    options = {**STRICT, "ASAN_OPTIONS": "detect_leaks=0"}  # Python itself lets go of nothing at its end
    environment = os.environ | options | {"LD_PRELOAD": ":".join(place.stdout.strip() for place in places)}
    command = [sys.executable, *(library if word == "LIBRARY" else word for word in words)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=550, check=False)


def test_random_plans_give_right_results_with_any_number_of_threads() -> None:
    library = library_for("none", SANITIZERS["none"])
    assert sum(check_random_plan(random.Random(seed), library, 6) for seed in range(12)) > 5


def plan_ranks(*case: str) -> PlanRanks:
    ranks = PlanRanks(parse_plan(json.dumps(document_of(*case)).encode()))
    ranks.bind(4096, "float32")
    return ranks


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_what_is_not_finished_says_who_waits_for_whom(threads: int) -> None:
    errors = plan_ranks("put", "a wait without a signal").call([threads, threads], limit_s=0.2)
    assert [error and error.is_late for error in errors] == [True, True]
    waits = [error.blocked for error in errors if error is not None]
    assert waits == [f"0 6 waits for signal 0 of rank {rank}\n" for rank in (1, 0)]


def test_a_rank_that_never_comes_is_named() -> None:
    ranks = plan_ranks("packets")
    assert ranks.ranks == 2
    ranks.ranks = 1
    (alone,) = ranks.call([2], limit_s=0.2)
    assert alone is not None
    assert alone.blocked == "0 0 waits for rank 1 to begin\n"


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
@pytest.mark.parametrize(("sanitizer", "plans", "mutants"), [("thread", 60, 0), ("address", 150, 20)])
def test_random_plans_under_a_sanitizer(sanitizer: str, plans: int, mutants: int) -> None:
    done = watched(sanitizer, "-m", "tests.native.plan_ranks", "LIBRARY", "5", str(plans), str(mutants))
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.startswith(f"{plans} plans, ")
    assert not {"ERROR", "WARNING"} & set(done.stderr.replace(":", " ").split()), done.stderr[-4000:]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_sanitizer_sees_a_plan_with_a_race() -> None:
    done = watched("thread", "-c", _RACE, "LIBRARY")
    assert "data race" in done.stderr
