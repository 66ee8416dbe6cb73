"""Campaigns on GPUs, played by stand-ins: protocols, fall-backs, the library's own answer, what is taken along.

Nothing here was measured: times are the formulas of `tests.stand_ins.nccl_tests`. LL is fastest up to 51 KB, LL128 up
to 1 MB, Simple up to 1.8 MB, and beyond the library, as it moves 100 kB in a microsecond here.
"""

import signal
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

import chorale.tuner.config.campaign as campaign_module
from chorale.runners.api.base import FailureKind
from chorale.runners.msccl.commands import JobOptions
from chorale.runners.msccl.runner import MscclRunner
from chorale.synth.build.build import build
from chorale.synth.build.request import BuildResult
from chorale.synth.targets.lift import lift
from chorale.tuner.config.campaign import Campaign
from chorale.tuner.files.home import Home
from chorale.tuner.files.topology_specs import load_topology
from chorale.tuner.launch.loop import RequestBuilder
from chorale.tuner.trials.records import CompleteTrial, FailedTrial, PrunedTrial, ranked_trials
from chorale.tuner.trials.store import Store, read_snapshot
from chorale.tuner.trials.tuning_table import TableEntry, table_programs, tuning_table
from tests.campaigns import small_campaign, space_of
from tests.command import chorale
from tests.fakes import FakeRunner, InlineWorkers
from tests.stand_ins.gpu_cluster import on_stand_ins, put_stand_ins, stand_in_environment
from tests.stand_ins.nccl_tests import PROTOCOLS, Loaded
from tests.unit.tuner.launch.test_loop import launch

SIZES = (2**14, 2**18, 2**22)
ANSWER = {2**14: "LL", 2**18: "Simple", 2**22: "library:nccl"}
"""While LL128 falls back."""
FAST_LIBRARY = {"STAND_IN_LIBRARY_BYTES_PER_US": "100000"}
MPICH = Path(sys.executable).parent / "mpiexec"
needs_mpich = pytest.mark.skipif(not MPICH.exists(), reason="MPICH is not installed: pip install mpich")
SEARCH = {"methods": ["ring"], "protocol": ["Simple", "LL", "LL128"]}


def gpu_campaign(search: dict[str, Any] = SEARCH, **changes: Any) -> Campaign:
    document: dict[str, Any] = {
        "name": "gpus",
        "sizes": list(SIZES),
        "search": search,
        "runner": {"kind": "msccl", "timeout_s": 60, "msccl": {"runtime": "executor"}},
        "baselines": ["library:nccl"],
        "repeats": 1,
        "sampler": "grid",
    }
    return small_campaign(**{**document, **changes})


def answer(chosen: Sequence[TableEntry]) -> dict[int, str]:
    """Return what to run at each size: the protocol of the program, or the baseline."""
    return {one.size_bytes: one.trial.candidate.protocol if one.trial else one.baseline for one in chosen}


def remember(campaign: Campaign, folder: Path) -> None:
    """Execute the programs of `campaign` here, so that no process has to, each with the imports that it takes."""
    requests = RequestBuilder(campaign, load_topology(campaign.topology))
    for candidate in space_of(campaign).points:
        built = build(requests.build(candidate))
        assert isinstance(built, BuildResult)
        path = folder / f"{candidate.id}.xml"
        path.write_text(built.program_text)
        Loaded.of(path)


@pytest.fixture
def stand_ins(tmp_path: Path) -> Path:
    put_stand_ins(tmp_path / "stand-ins")
    return tmp_path / "stand-ins"


def test_each_size_gets_its_protocol_and_the_library_where_it_wins(
    stand_ins: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = stand_in_environment(stand_ins, tmp_path, "executor", "LL128 falls back") | FAST_LIBRARY
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    remember(gpu_campaign(), tmp_path)
    folder = tmp_path / "launch"
    folder.mkdir()
    trials = launch(folder, gpu_campaign(), InlineWorkers(MscclRunner(JobOptions((1,), runtime="executor"))))
    store = Store(folder)
    store.close()
    [fallen] = [trial for trial in trials if isinstance(trial, FailedTrial)]
    assert (fallen.candidate.protocol, fallen.failure_kind) == ("LL128", FailureKind.REJECTED)
    assert "fell back" in fallen.message
    complete = [trial for trial in trials if isinstance(trial, CompleteTrial)]
    chosen = tuning_table(ranked_trials(complete, store.final), together=False)
    assert answer(chosen) == ANSWER
    for trial in complete:
        start_us, bytes_per_us = PROTOCOLS[trial.candidate.protocol]
        expected = [(start_us + size / bytes_per_us) * 1e-6 for size in SIZES]
        assert [size.median_s for size in trial.sizes] == pytest.approx(expected, abs=1e-8)
        assert trial.environment["runtime"] == "executor"
    programs = [
        lift(text) for text in table_programs(chosen, lambda name: store.program_path(name).read_bytes()).values()
    ]
    assert [(one.protocol, one.min_bytes, one.max_bytes) for one in programs] == [
        ("LL", 2**14, 2**18 - 1),
        ("Simple", 2**18, 2**22 - 1),
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


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("launcher", ["openmpi", pytest.param("ray", marks=needs_mpich)])
def test_a_campaign_on_a_ray_cluster_with_gpus(
    capsys: pytest.CaptureFixture[str],
    home: Home,
    stand_ins: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    launcher: str,
) -> None:
    """The stand-ins are the launcher, the test programs and the library; Ray, its GPUs in name, and MPICH are real."""
    environment = stand_in_environment(stand_ins, tmp_path, "executor", "LL128 falls back") | FAST_LIBRARY
    if launcher == "ray":
        (stand_ins / "mpiexec").unlink()
        environment["PATH"] = f"{stand_ins}:{MPICH.parent}:/usr/bin:/bin"
    recipe = campaign_module.runner_factory
    monkeypatch.setattr(
        campaign_module, "runner_factory", lambda *given: partial(on_stand_ins, environment, recipe(*given))
    )
    runner = {"kind": "msccl", "msccl": {"runtime": "executor", "launcher": launcher, "shared_folder": str(tmp_path)}}
    search = {"methods": ["ring", "bfb"], "protocol": ["Simple", "LL", "LL128"], "instances": [1, 2]}
    campaign = gpu_campaign(search, runner=runner, repeats=2, budget={"trials": 12})
    path, table, programs = (tmp_path / name for name in ("campaign.yaml", "tuner.csv", "programs"))
    path.write_text(yaml.safe_dump(campaign.model_dump(by_alias=True, mode="json")))
    handler = signal.getsignal(signal.SIGTERM)
    try:
        done = chorale(capsys, "tune", path, "--json", "--programs", programs, "--nccl-tuner-csv", table)
    finally:
        signal.signal(signal.SIGTERM, handler)
    assert done.code == 0, done.stderr
    trials = read_snapshot(home.campaigns / campaign.name / "1").trials
    complete = [trial for trial in trials if isinstance(trial, CompleteTrial)]
    failed = [trial for trial in trials if isinstance(trial, FailedTrial)]
    assert (len(complete), len(failed)) == (8, 4)
    assert {(trial.candidate.protocol, trial.failure_kind) for trial in failed} == {("LL128", FailureKind.REJECTED)}
    assert {trial.environment["gpus_per_node"] for trial in complete} == {4}
    document = done.document
    assert document["tracking_problem"] is None
    best = {row["size_bytes"]: row for row in document["best"]}
    found = {
        size: row["parameters"]["protocol"] if row["parameters"] else row["baseline"] for size, row in best.items()
    }
    assert found == ANSWER
    assert [row["run"] for row in document["answer"]] == ["program", "program", "baseline"]
    assert [lift(path.read_bytes()).protocol for path in sorted(programs.iterdir())] == ["LL", "Simple"]
    rows = [line.split(",") for line in table.read_text().splitlines()[1:]]
    assert {(row[0], row[3]) for row in rows} == {("allreduce", "ring")}
    assert [row[4] for row in rows] == ["ll", "simple"]
