"""Campaigns on GPUs, played by the stand-in library: protocols, fall-backs, the library's own answer.

The stand-in says nothing of GPUs. There LL is fastest at 16 KiB, Simple at 1 MiB, and LL128 falls back.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from chorale.runners.api.base import FailureKind
from chorale.runners.engine.build import has_compiler
from chorale.runners.msccl.config import MscclConfig
from chorale.runners.msccl.runner import MscclRunner
from chorale.synth.targets.lift import lift
from chorale.tuner.config.campaign import Campaign
from chorale.tuner.trials.records import CompleteTrial, FailedTrial, PrunedTrial, ranked_trials
from chorale.tuner.trials.store import Store
from chorale.tuner.trials.tuning_table import TableEntry, table_programs, tuning_table
from tests.campaigns import small_campaign
from tests.fakes import FakeRunner, InlineWorkers
from tests.stand_ins.nccl import stand_in_library
from tests.unit.tuner.launch.test_loop import launch

SIZES = (2**14, 2**20)
SEARCH = {"methods": ["ring"], "protocol": ["Simple", "LL", "LL128"]}


def gpu_campaign(search: dict[str, Any] = SEARCH, **changes: Any) -> Campaign:
    document: dict[str, Any] = {
        "name": "gpus",
        "sizes": list(SIZES),
        "search": search,
        "runner": {"kind": "msccl", "timeout_s": 60, "msccl": {"runtime": "executor"}},
        "baselines": ["library:nccl"],
        "repeats": 2,
        "sampler": "grid",
    }
    return small_campaign(**{**document, **changes})


def answer(chosen: Sequence[TableEntry]) -> dict[int, str]:
    """Return what to run at each size: the protocol of the program, or the baseline."""
    return {one.size_bytes: one.trial.candidate.protocol if one.trial else one.baseline for one in chosen}


@pytest.mark.skipif(not has_compiler(), reason="CAMPAIGNS ON MSCCL ARE NOT TESTED: there is no C++ compiler")
def test_each_size_gets_its_protocol(tmp_path: Path) -> None:
    (tmp_path / "libnccl.so").symlink_to(stand_in_library())
    played = {"STAND_IN_RUNTIME": "executor", "STAND_IN_FAULT": "LL128 falls back", "STAND_IN_SLOWNESS": "20"}
    folder = tmp_path / "launch"
    folder.mkdir()
    config = MscclConfig(
        runtime="executor", library_folder=str(tmp_path), memory="host", iterations=1, variables=played
    )
    with MscclRunner(config) as runner:
        trials = launch(folder, gpu_campaign(), InlineWorkers(runner))
    store = Store(folder)
    store.close()
    [fallen] = [trial for trial in trials if isinstance(trial, FailedTrial)]
    assert (fallen.candidate.protocol, fallen.failure_kind) == ("LL128", FailureKind.REJECTED)
    assert "fell back" in fallen.message
    complete = [trial for trial in trials if isinstance(trial, CompleteTrial)]
    chosen = tuning_table(ranked_trials(complete, store.final), together=False)
    assert answer(chosen) == {2**14: "LL", 2**20: "Simple"}
    assert {trial.environment["runtime"] for trial in complete} == {"executor"}
    programs = [
        lift(text) for text in table_programs(chosen, lambda name: store.program_path(name).read_bytes()).values()
    ]
    assert [(one.protocol, one.min_bytes, one.max_bytes) for one in programs] == [
        ("LL", 2**14, 2**20 - 1),
        ("Simple", 2**20, 2**20),
    ]
    assert {one.target for one in programs} == {"msccl-executor-xml"}


def test_programs_too_long_for_a_runtime_are_pruned(tmp_path: Path) -> None:
    """The executor takes 64 steps of a thread block, MSCCL 256."""
    search = {"methods": ["forest"], "depth": [20]}
    for runtime, state in (("executor", PrunedTrial), ("msccl", CompleteTrial)):
        (tmp_path / runtime).mkdir()
        campaign = gpu_campaign(search, runner={"kind": "msccl", "msccl": {"runtime": runtime}}, baselines=["ring"])
        [trial] = launch(tmp_path / runtime, campaign, InlineWorkers(FakeRunner()))
        assert isinstance(trial, state)
        if isinstance(trial, PrunedTrial):
            assert "a program must fit msccl-executor-xml: " in trial.reason
