"""Schedule files: .parquet for any size, .json for reading."""

from __future__ import annotations

from pathlib import Path

from synth.errors import InvalidInput
from synth.schedule.codec import from_json_text, from_parquet, to_json_text, to_parquet
from synth.schedule.schedule import Schedule
from synth.verify.verified import VerifiedSchedule
from tuner.files import read_file, write_file
from tuner.specs import load_topology

SUFFIXES = (".parquet", ".json")


def require_schedule_suffix(path: str | Path) -> None:
    """Raise InvalidInput unless `path` ends in a suffix that schedules have."""
    if Path(path).suffix not in SUFFIXES:
        rule = "a schedule file must end in .parquet or .json"
        raise InvalidInput(rule, str(path), "choose one of the two, for example schedule.parquet")


def load_schedule(path: str | Path) -> Schedule:
    """Read the schedule file at `path`, by its suffix. The schedule is not yet verified."""
    require_schedule_suffix(path)
    content = read_file(str(path))
    read = from_parquet if Path(path).suffix == ".parquet" else from_json_text
    return read(content, load_topology)


def save_schedule(verified: VerifiedSchedule, path: str | Path) -> None:
    """Write a verified schedule to `path`, by its suffix; an older file survives any failure."""
    require_schedule_suffix(path)
    schedule = verified.schedule
    is_parquet = Path(path).suffix == ".parquet"
    write_file(path, to_parquet(schedule) if is_parquet else to_json_text(schedule).encode())
