"""Campaigns of a watch with a stand-in for their process: when they begin and end, and what becomes of their answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from chorale.job.table.making import table_program
from chorale.job.table.model import ANY_DTYPE, JobEntry, Table
from chorale.runners.api.base import Measurement, RunRequest, SizeMeasurement
from chorale.synth.build.build import build_program
from chorale.synth.build.request import ScheduleRequest
from chorale.synth.build.schedules import build_schedule
from chorale.synth.collective import parse_collective
from chorale.synth.errors import CheckFailed, InvalidInput
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.simulation.network_model import NetworkModel
from chorale.synth.topology.spec import parse_topology
from chorale.tuner.files.home import Home
from chorale.tuner.watch.canary import CANDIDATE, PRESENT, Canary
from chorale.tuner.watch.config import WatchConfig
from chorale.tuner.watch.fabric_state import FabricState
from chorale.tuner.watch.job_times import CallTimes, Snapshot
from chorale.tuner.watch.publishing import Publisher
from chorale.tuner.watch.renewal import Renewal, RenewalParts
from chorale.tuner.watch.replanning import TARGET, Planner, PlanRequest, TunedProgram, table_entry
from chorale.tuner.watch.retune_campaigns import CampaignOrder, WatchCampaigns
from chorale.tuner.watch.retuning import RetuneOptions, Retuner
from chorale.tuner.watch.windows import Hours, IdleWindow

_NET = parse_topology("complete:4")
_SIZE, _JOB_SIZE = 1 << 20, 1 << 18


@dataclass
class _Process:
    code: int | None = None
    interrupts: int = 0

    def poll(self) -> int | None:
        return self.code

    def interrupt(self) -> None:
        self.interrupts += 1
        self.code = 130

    def close(self) -> None:
        self.interrupt()

    def last_words(self) -> str:
        return "it failed"


@dataclass
class _Campaigns:
    """Stands in for `WatchCampaigns`."""

    tuned: Any = None
    orders: list[CampaignOrder] = field(default_factory=list)
    resumed: int = 0
    process: _Process = field(default_factory=_Process)
    name: str = "cube-retune"

    def begin(self, order: CampaignOrder, present: Any) -> _Process:
        self.orders.append(order)
        self.process = _Process()
        return self.process

    def resume(self) -> _Process:
        self.resumed += 1
        self.process = _Process()
        return self.process

    def tuned_programs(self, order: CampaignOrder, present: Any) -> Any:
        if self.tuned is None:
            raise CheckFailed("a campaign must have a complete trial", "none", "run it again")
        return self.tuned


@dataclass
class _Setting:
    renewal: Renewal
    retuner: Retuner
    campaigns: _Campaigns
    jobs: dict[Any, CallTimes]
    busy: list[float]

    def step(self, now_s: float, is_healthy: bool = True) -> list[str]:
        events = self.retuner.step(self.renewal, is_healthy, now_s)
        return [f"{event['event']} {event.get('stage', event.get('why', ''))}" for event in events]

    def slow_job(self, seconds: float = 10.0, size_bytes: int = _JOB_SIZE) -> None:
        assert self.renewal.present is not None
        entry = table_entry(self.renewal.present.table, "allreduce", size_bytes)
        assert entry is not None
        self.jobs[entry.digest, "allreduce", size_bytes] = CallTimes(50, 50 * seconds, 50 * seconds**2)


def _tuned(method: str, time_us: float) -> dict[tuple[str, int], TunedProgram]:
    built = build_schedule(ScheduleRequest(_NET, parse_collective("allreduce"), method))
    text = build_program(built.verified, LoweringOptions(TARGET)).text.encode()
    measured = {"runner": "local", "sizes": [{"size_bytes": _JOB_SIZE, "time_us": time_us}]}
    return {("allreduce", _JOB_SIZE): TunedProgram(table_program(text, TARGET, method, {}), measured)}


def _setting(tmp_path: Path, ratio: float = 0.8, window: IdleWindow | None = None) -> _Setting:
    def measure(request: RunRequest) -> Measurement:
        times = {PRESENT: 1.0, CANDIDATE: ratio}
        sizes = {
            name: tuple(SizeMeasurement(size, size, (times[name],), True) for size in request.sizes_bytes)
            for name in times
        }
        return Measurement("fake", sizes)

    jobs: Snapshot = {}
    busy = [0.0]
    planner = Planner(PlanRequest(("allreduce",), (_SIZE,), ("bfb",), NetworkModel.of(0, 0, 0, "1/10")))
    canary = Canary(_NET, measure, (_SIZE,), 6, 10.0, lambda: 0.0)
    parts = RenewalParts(_NET, ("allreduce",), planner, canary, Publisher(tmp_path / "table"), lambda: dict(jobs))
    renewal, campaigns = Renewal(parts), _Campaigns()
    renewal.renew(FabricState(), 0.0, lambda: False)
    window = window or IdleWindow((Hours.of("00:00-24:00"),))
    options = RetuneOptions(window, 0.25, 1000.0, lambda _now_s: busy[0])
    return _Setting(renewal, Retuner(options, campaigns, tmp_path / "retune.json"), campaigns, jobs, busy)  # type: ignore[arg-type]


def test_jobs_that_are_as_fast_as_predicted_have_nothing_tuned(tmp_path: Path) -> None:
    setting = _setting(tmp_path)
    assert setting.step(1.0) == []
    assert setting.renewal.present is not None
    planner, plan = setting.renewal.parts.planner, setting.renewal.present
    entry = table_entry(plan.table, "allreduce", _JOB_SIZE)
    assert entry is not None
    predicted_s = planner.predicted_s(plan, entry.digest, "allreduce", _JOB_SIZE)
    assert predicted_s is not None
    setting.slow_job(predicted_s)
    assert setting.step(2.0) == []
    assert setting.campaigns.orders == []


def test_a_campaign_runs_once_the_job_has_ended_and_its_program_is_published(tmp_path: Path) -> None:
    setting = _setting(tmp_path)
    setting.slow_job()
    setting.busy[0] = 1.0
    assert setting.step(1.0) == ["retune due"]
    assert setting.step(2.0) == []  # a job runs
    setting.busy[0] = 0.0
    assert setting.step(3.0) == ["retune began"]
    assert setting.campaigns.orders == [CampaignOrder("allreduce", (_JOB_SIZE,))]
    setting.campaigns.tuned = _tuned("ring", 250.0)
    setting.campaigns.process.code = 0
    former = setting.renewal.present
    assert setting.step(4.0) == ["retune ended", "canary ", f"publish tuned anew: allreduce of {_JOB_SIZE} bytes"]
    present = setting.renewal.present
    assert present is not None
    assert former is not None
    entries = {size: table_entry(present.table, "allreduce", size) for size in (_JOB_SIZE, _SIZE)}
    assert entries[_JOB_SIZE] == setting.campaigns.tuned["allreduce", _JOB_SIZE].entry
    assert entries[_SIZE] == table_entry(former.table, "allreduce", _SIZE)
    planner = setting.renewal.parts.planner
    assert planner.plan(present.spec) is present  # also when the fabric is healthy again after a fault
    digest = entries[_JOB_SIZE].digest if entries[_JOB_SIZE] is not None else ""
    assert planner.predicted_s(present, digest, "allreduce", _JOB_SIZE) == pytest.approx(250e-6)
    setting.slow_job()
    assert setting.step(500.0) == []  # tuned not long ago
    assert setting.step(1500.0) == ["retune due"]


def test_a_program_that_is_slower_on_the_fabric_is_not_published(tmp_path: Path) -> None:
    setting = _setting(tmp_path, ratio=1.3)
    setting.slow_job()
    before = setting.renewal.present
    setting.campaigns.tuned = _tuned("ring", 250.0)
    assert [setting.step(1.0), setting.step(2.0)] == [["retune due"], ["retune began"]]
    setting.campaigns.process.code = 0
    assert "retune ended" in setting.step(3.0)
    assert before is not None
    assert setting.renewal.present is not None
    now = table_entry(setting.renewal.present.table, "allreduce", _JOB_SIZE)
    assert now == table_entry(before.table, "allreduce", _JOB_SIZE)


def test_a_job_that_begins_interrupts_it_and_it_goes_on_later_also_after_a_restart(tmp_path: Path) -> None:
    setting = _setting(tmp_path)
    setting.slow_job()
    assert [setting.step(1.0), setting.step(2.0)] == [["retune due"], ["retune began"]]
    setting.busy[0] = 0.5
    assert setting.step(3.0) == []
    assert setting.campaigns.process.interrupts == 1
    assert setting.step(4.0) == ["retune interrupted"]
    assert setting.step(5.0) == []
    again = Retuner(setting.retuner.options, setting.retuner.campaigns, tmp_path / "retune.json")
    again.resume()
    setting.retuner, setting.busy[0] = again, 0.0
    assert setting.step(6.0, is_healthy=False) == []
    assert setting.step(7.0) == ["retune resumed"]
    assert setting.campaigns.resumed == 1


def test_a_campaign_that_fails_is_told_and_not_repeated_at_once(tmp_path: Path) -> None:
    setting = _setting(tmp_path)
    setting.slow_job()
    assert [setting.step(1.0), setting.step(2.0)] == [["retune due"], ["retune began"]]
    setting.campaigns.process.code = 2
    assert setting.step(3.0) == ["retune failed"]
    assert setting.step(4.0) == []


def test_sizes_that_part_while_the_window_is_closed_are_tuned_too(tmp_path: Path) -> None:
    setting = _setting(tmp_path)
    setting.slow_job()
    setting.busy[0] = 1.0
    assert setting.step(1.0) == ["retune due"]
    setting.slow_job(size_bytes=_SIZE)
    setting.busy[0] = 0.0
    assert setting.step(2.0) == ["retune began"]
    assert setting.campaigns.orders == [CampaignOrder("allreduce", (_JOB_SIZE, _SIZE))]


def test_outside_of_its_hours_nothing_begins(tmp_path: Path) -> None:
    setting = _setting(tmp_path, window=IdleWindow(()))
    setting.slow_job()
    assert setting.step(1.0) == ["retune due"]
    assert setting.step(2.0) == []
    assert setting.campaigns.orders == []


def _config(tmp_path: Path, **retune: Any) -> WatchConfig:
    document = {"name": "cube", "topology": "complete:4", "table": str(tmp_path / "table"), "retune": retune}
    return WatchConfig.model_validate(document)


def test_the_file_of_a_campaign_has_the_present_programs_as_baselines(tmp_path: Path) -> None:
    started: list[tuple[Path, bool]] = []

    def start(file: Path, _home: Path, *, resume: bool) -> _Process:
        started.append((file, resume))
        return _Process()

    config = _config(tmp_path, hours=["00:00-24:00"], campaign={"search": {"methods": ["ring"], "channels": [1]}})
    starting: Callable[..., Any] = start
    campaigns = WatchCampaigns(config, "fabric-1", Home(tmp_path), tmp_path, starting)
    campaigns.check()
    present = _setting(tmp_path).renewal.present
    assert present is not None
    campaigns.begin(CampaignOrder("allreduce", (_JOB_SIZE,)), present.table)
    campaigns.resume()
    assert [resume for _, resume in started] == [False, True]
    document = yaml.safe_load(started[0][0].read_text())
    assert (document["name"], document["sizes"], document["warm_start"]) == ("cube-retune", [_JOB_SIZE], True)
    assert document["runner"] == {"kind": "local", "fabric": "fabric-1", "where": "fabric"}
    assert document["search"] == {"methods": ["ring"], "channels": [1]}
    (baseline,) = document["baselines"]
    assert Path(baseline).read_bytes() == next(iter(present.table.programs.values())).text


def test_a_present_program_that_stays_the_fastest_is_what_a_campaign_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    present = _setting(tmp_path).renewal.present
    assert present is not None
    (program,) = present.table.programs.values()
    sizes = [{"size_bytes": 96, "time_us": 11.0, "baseline": f"program:present.xml:{program.digest[:8]}"}]
    entry = JobEntry("allreduce", ANY_DTYPE, None, None, 0, None, None, {"runner": "local", "sizes": sizes})
    table = Table(present.table.topology, present.table.ranks, (entry,), {})
    monkeypatch.setattr("chorale.tuner.watch.retune_campaigns.table_of_campaign", lambda *_, **__: table)
    campaigns = WatchCampaigns(_config(tmp_path), "fabric-1", Home(tmp_path), tmp_path)
    tuned = campaigns.tuned_programs(CampaignOrder("allreduce", (8,)), present.table)
    assert tuned == {("allreduce", 8): TunedProgram(program, {"runner": "local", "sizes": sizes})}


def test_keys_that_no_campaign_has_are_refused_before_the_watch_begins(tmp_path: Path) -> None:
    config = _config(tmp_path, hours=["00:00-24:00"], campaign={"serch": {}})
    with pytest.raises(InvalidInput, match=r"retune\.campaign"):
        WatchCampaigns(config, "fabric-1", Home(tmp_path), tmp_path).check()
