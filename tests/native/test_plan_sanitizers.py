"""The executor of plans: random plans with one thread and with many for each block, watched by sanitizers."""

import json
import os
import random
import subprocess
import sys

import pytest

from chorale.runners.engine.build import find_compiler
from chorale.synth.targets.mscclpp_reading import parse_plan
from tests.conformance.plan_cases import document_of
from tests.native.driver import SANITIZERS
from tests.native.plan_ranks import PlanRanks, check_random_plan, library_for
from tests.native.test_sanitizers import STRICT

_RUNTIMES = {"thread": ("libtsan.so",), "address": ("libasan.so", "libubsan.so")}
_RACE = """
import json, sys
from pathlib import Path
from tests.conformance.plan_cases import document_of
from tests.native.plan_ranks import PlanRanks
from chorale.synth.targets.mscclpp_reading import parse_plan
document = json.dumps(document_of("get", "nobody waits for the other to begin"))
ranks = PlanRanks(parse_plan(document.encode()), Path(sys.argv[1]))
ranks.bind(4096, "float32")
list(ranks.complaints(4096, "float32", [1, 1], 100))  # they seldom come one after the other as often
"""


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


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_what_is_not_finished_says_who_waits_for_whom(threads: int) -> None:
    ranks = PlanRanks(parse_plan(json.dumps(document_of("put", "a wait without a signal")).encode()))
    ranks.bind(4096, "float32")
    first, second = ranks.call([threads, threads], limit_s=0.2)
    assert first is not None
    assert second is not None
    assert first.is_late
    assert first.blocked == "0 6 waits for signal 0 of rank 1\n"
    assert second.blocked == "0 6 waits for signal 0 of rank 0\n"


def test_a_rank_that_never_comes_is_named() -> None:
    ranks = PlanRanks(parse_plan(json.dumps(document_of("packets")).encode()))
    ranks.bind(4096, "float32")
    ranks.ranks, words = 1, ranks.ranks
    (alone,) = ranks.call([2], limit_s=0.2)
    assert words == 2
    assert alone is not None
    assert alone.blocked == "0 0 waits for rank 1 to begin\n"


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
