"""Schedule files: .parquet for any size, .json for reading."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from synth.errors import InvalidInput
from synth.schedule.codec import from_json_text, from_parquet, stated_id, to_json_text, to_parquet
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
    return _reader(path)(read_file(str(path)), load_topology)


def load_for_inspection(path: str | Path) -> tuple[Schedule, str]:
    """Read a schedule file whose content may differ from its id; return the schedule and the stated id."""
    require_schedule_suffix(path)
    content = read_file(str(path))
    schedule = _reader(path)(content, load_topology, require_id=False)
    return schedule, stated_id(content)


def _reader(path: str | Path) -> Callable[..., Schedule]:
    return from_parquet if Path(path).suffix == ".parquet" else from_json_text


def save_schedule(verified: VerifiedSchedule, path: str | Path) -> None:
    """Write a verified schedule to `path`, by its suffix; an older file survives any failure."""
    require_schedule_suffix(path)
    schedule = verified.schedule
    is_parquet = Path(path).suffix == ".parquet"
    write_file(path, to_parquet(schedule) if is_parquet else to_json_text(schedule).encode())
