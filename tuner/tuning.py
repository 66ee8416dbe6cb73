"""A whole launch, wired up: folder, search, workers, loop, tracking, registry."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chorale.synth.topology.topology import Topology
from chorale.tuner.campaigns.campaign import Campaign
from chorale.tuner.campaigns.effort import Overhead
from chorale.tuner.campaigns.final import RankedTrial
from chorale.tuner.campaigns.launch import Launch
from chorale.tuner.campaigns.records import TrialRecord
from chorale.tuner.campaigns.size_class import SizeClass
from chorale.tuner.home import Home
from chorale.tuner.launch_report import draw_picture, upload_page, write_page
from chorale.tuner.launch_work import INTERRUPTED_PATIENCE_S, LaunchWork, MakeWorkers, MeasuringOutcome, ProgressFactory
from chorale.tuner.open_launch import open_store
from chorale.tuner.tracking.champions import PromotionVerdict
from chorale.tuner.tracking.tracker import Tracker, TrackingResult

UPLOAD_PATIENCE_S = 120.0


@dataclass(frozen=True, slots=True)
class TuneReport:
    """What came of a launch.

    `versions` maps sizes in bytes to the registered version, where there is one; `verdicts` says of the winner of each
    size class whether it has the alias, and why; `effort` is `Overhead.document`.
    """

    launch: Launch
    trials: tuple[TrialRecord, ...]
    ranked_trials: tuple[RankedTrial, ...]
    versions: Mapping[int, str]
    tracked: TrackingResult
    interrupted: bool
    seconds: float
    folder: Path
    overhead: Mapping[str, Any]
    verdicts: Mapping[SizeClass, PromotionVerdict] = field(default_factory=dict)


def tune(
    campaign: Campaign,
    topology: Topology,
    home: Home,
    resume: bool,
    make_workers: MakeWorkers,
    make_progress: ProgressFactory,
    launch_id: str | None = None,
    try_again: Callable[[], bool] = lambda: False,
    patience_s: float = 0.0,
) -> TuneReport:
    """Run a launch to its end, or to the first KeyboardInterrupt, and report; whatever finished is kept.

    `resume`, `launch_id` and `patience_s` choose the launch, see `open_store`; `try_again` says how long to try to
    reach MLflow at the end, see `Tracker.finish`.
    Raises ChoraleError where the launch could not go on; what was measured is in its journal by then.
    """
    started_s = time.monotonic()
    store = open_store(campaign, topology, home, resume, launch_id, patience_s)
    try:
        tracker = Tracker(home, campaign, topology, store)
        tracker.start()
        work = LaunchWork(campaign, topology, home, store, tracker, Overhead(time.monotonic))
        ended, tracked = _measured(work, make_workers, make_progress, try_again)
        if ended.failure is not None:
            raise ended.failure
        return _reported(work, ended, tracked, started_s)
    finally:
        store.close()


def _measured(
    work: LaunchWork, make_workers: MakeWorkers, make_progress: ProgressFactory, try_again: Callable[[], bool]
) -> tuple[MeasuringOutcome, TrackingResult]:
    """Measure, and let MLflow know of everything."""
    began_cpu_s = time.process_time()
    ended = work.measure(make_workers, make_progress)
    draw_picture(work.campaign, work.store)
    patience_s = INTERRUPTED_PATIENCE_S if ended.interrupted else UPLOAD_PATIENCE_S
    tracked = work.tracker.finish(work.store.trials, work.store.final, ended.status, patience_s, try_again)
    work.overhead.cpu_s = time.process_time() - began_cpu_s
    work.store.settle()
    return ended, tracked


def _reported(work: LaunchWork, ended: MeasuringOutcome, tracked: TrackingResult, started_s: float) -> TuneReport:
    """Register the winners and write the report."""
    store, ranked = work.store, work.ranked_trials()
    versions, verdicts = work.register(tracked, ended)
    spent = work.overhead.document(tracked.seconds)
    write_page(work.campaign, store, ranked, versions, verdicts or ended.verdicts, spent)
    if work.tracker.mlflow is not None:
        upload_page(work.tracker.mlflow, tracked, store)
    seconds = time.monotonic() - started_s
    return TuneReport(
        store.launch,
        tuple(store.trials),
        tuple(ranked),
        versions,
        tracked,
        ended.interrupted,
        seconds,
        store.folder,
        spent,
        verdicts,
    )
