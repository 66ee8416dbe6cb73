"""Opening the launch of a campaign, new or resumed, and snapshots of launches that another process may be writing."""

from __future__ import annotations

import logging
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from chorale.synth.errors import CheckFailed, InvalidInput
from chorale.synth.topology.topology import Topology
from chorale.tuner.config.campaign import Campaign
from chorale.tuner.files.home import Home
from chorale.tuner.trials.journal import Launch, check_same_conditions, conditions_of, launch_folders
from chorale.tuner.trials.journal_file import read_journal, whole_lines
from chorale.tuner.trials.journal_lines import parse_lines
from chorale.tuner.trials.records import CompleteTrial, FinalComparison, RankedTrial, TrialRecord, ranked_trials
from chorale.tuner.trials.store import JOURNAL, Store, is_begun, read_launch, require_whole


@dataclass(frozen=True, slots=True)
class LaunchSnapshot:
    """The state of a launch on disk; `folder` holds its files."""

    folder: Path
    launch: Launch
    trials: tuple[TrialRecord, ...]
    final: FinalComparison | None

    @property
    def ranked_trials(self) -> list[RankedTrial]:
        """The trials to choose the best from: the finalists, or all before the final comparison."""
        complete = [trial for trial in self.trials if isinstance(trial, CompleteTrial)]
        return ranked_trials(complete, self.final)


def read_snapshot(folder: Path) -> LaunchSnapshot:
    """Return what the launch in `folder` has written in whole lines. CheckFailed for a journal that is not readable."""
    rule, way_out = "the journal of a launch must be readable", f"see `chorale campaign check {folder.parent.name}`"
    try:
        content = parse_lines(whole_lines(read_journal(folder / JOURNAL)))
        launch = require_whole(content, folder)
    except InvalidInput as error:
        raise CheckFailed(rule, f"launch {folder.name}: {error.value}", way_out) from error
    return LaunchSnapshot(folder, launch, content.records, content.final)


_log = logging.getLogger("chorale.tune")


def open_store(
    campaign: Campaign,
    topology: Topology,
    home: Home,
    resume: bool,
    *,
    launch_id: str | None = None,
    patience_s: float = 0.0,
) -> Store:
    """Return the store of a new launch, or with `resume` of the newest one if there is any.

    With a `launch_id` the launch with this id is resumed, or begun if there is none, so that a restart after a crash
    need not know how far it came; its former process gets `patience_s` to end. A resumed launch must have the same
    conditions; its budget, search space and sampler may differ.
    """
    folders = launch_folders(home, campaign.name)
    begun = [folder for folder in folders if is_begun(folder)] if resume or launch_id is not None else []
    if launch_id is not None:
        begun = [folder for folder in begun if read_launch(folder).launch_id == launch_id]
    conditions = conditions_of(campaign, topology)
    if begun:
        store = Store(begun[-1], patience_s=patience_s)
        try:
            check_same_conditions(store.launch, conditions)
        except InvalidInput:
            store.close()
            raise
        _log.info("resuming launch %d of %s with %d trials", store.launch.number, campaign.name, len(store.trials))
        return store
    number = int(folders[-1].name) + 1 if folders else 1
    if resume:
        _log.info("nothing to resume for %s: this is its first launch", campaign.name)
    elif folders:
        _log.info("launch %d of %s; the earlier ones stay (--resume goes on with the newest)", number, campaign.name)
    document = campaign.model_dump(by_alias=True, mode="json")
    launch = Launch(launch_id or uuid.uuid4().hex, number, conditions, document, time.time())
    return Store(home.create(home.campaigns / campaign.name / str(number)), launch)
