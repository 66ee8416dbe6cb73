"""A launch as its journal has it, for those who watch while another process writes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from chorale.synth.errors import CheckFailed
from chorale.tuner.campaigns.final import FinalComparison, RankedTrial, ranked_trials
from chorale.tuner.campaigns.launch import Launch, launch_codec
from chorale.tuner.campaigns.records import CompleteTrial, TrialRecord
from chorale.tuner.campaigns.store import JOURNAL, line_codec


@dataclass(frozen=True, slots=True)
class LaunchSnapshot:
    """What is on disk of a launch; `folder` holds its files."""

    folder: Path
    launch: Launch
    trials: tuple[TrialRecord, ...]
    final: FinalComparison | None

    @property
    def ranked_trials(self) -> list[RankedTrial]:
        """The trials to choose the best from: the finalists, or all if there was no final yet."""
        complete = [trial for trial in self.trials if isinstance(trial, CompleteTrial)]
        return ranked_trials(complete, self.final)


def read_snapshot(folder: Path) -> LaunchSnapshot:
    """Return what the launch in `folder` has written in whole lines. CheckFailed for a journal that is not readable."""
    content = (folder / JOURNAL).read_bytes() if (folder / JOURNAL).exists() else b""
    lines = content[: content.rfind(b"\n") + 1].splitlines()
    try:
        launch = launch_codec.validate_json(lines[0])
        records = [line_codec.validate_json(line) for line in lines[1:]]
    except (IndexError, ValidationError) as error:
        rule, way_out = "the journal of a launch must be readable", "look at it on the machine of the service"
        raise CheckFailed(rule, f"launch {folder.name}", way_out) from error
    finals = [record for record in records if isinstance(record, FinalComparison)]
    trials = tuple(record for record in records if not isinstance(record, FinalComparison))
    return LaunchSnapshot(folder, launch, trials, finals[-1] if finals else None)
