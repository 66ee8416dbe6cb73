"""Reads topology specs, which may name files, and reads and writes schedule files (.parquet, or .json for people)."""

import json
from pathlib import Path

from chorale.job.files import read_file
from chorale.synth import InvalidInput, Topology, VerifiedSchedule, parse_topology
from chorale.synth.schedule import codec
from chorale.synth.schedule.schedule import AnySchedule, Form, Schedule
from chorale.synth.topology.formats.json_document import to_json
from chorale.synth.topology.registry import FileCall, FunctionCall, SpecTree, parse_spec
from chorale.synth.verify.verify import verify
from chorale.tuner.files.home import write_file


def load_topology(spec: str) -> Topology:
    """Return the checked topology of `spec`; file:PATH is read from disk. Raises InvalidInput for an invalid spec."""
    return parse_topology(spec, read_file)


def save_topology(topology: Topology, path: Path) -> None:
    write_file(path, (json.dumps(to_json(topology), indent=1) + "\n").encode())


def absolute_spec(spec: str) -> str:
    """Return `spec` with absolute file paths, so that it is valid in every folder.

    A spec without files is returned unchanged. Raises InvalidInput for an invalid spec.
    """
    tree = parse_spec(spec)
    absolute = _absolute(tree)
    return spec if absolute == tree else str(absolute)


def _absolute(tree: SpecTree) -> SpecTree:
    if isinstance(tree, FileCall):
        return FileCall(str(Path(tree.path).absolute()))
    if isinstance(tree, FunctionCall):
        inner = (_absolute(part) if isinstance(part, SpecTree) else part for part in tree.arguments)
        return FunctionCall(tree.name, tuple(inner))
    return tree


SUFFIXES = (".parquet", ".json")
MAX_EXPANDED_ROWS = 2**25
"""Maximum number of transfers in a schedule that is expanded from symmetric form in order to lower or run it."""


def require_schedule_suffix(path: str | Path, form: Form = "columns") -> None:
    """Raise InvalidInput unless `path` has a suffix for schedules of `form`."""
    if not is_schedule_name(path):
        rule = "the name of a schedule file must end in .parquet or .json"
        raise InvalidInput(rule, str(path), "choose one of the two, for example schedule.parquet")
    if form == "symmetric" and Path(path).suffix != ".parquet":
        rule = "a schedule in symmetric form is written as .parquet"
        raise InvalidInput(rule, str(path), "use a file name that ends in .parquet")


def is_schedule_name(path: str | Path) -> bool:
    return Path(path).suffix in SUFFIXES


def load_schedule(path: str | Path) -> Schedule:
    """Read the schedule file at `path`; its suffix gives the format. The schedule is not verified yet.

    A schedule in symmetric form is checked (CheckFailed) and expanded. Raises InvalidInput if it has more than
    `MAX_EXPANDED_ROWS` transfers.
    """
    schedule = load_schedule_in_its_form(path)
    return schedule if isinstance(schedule, Schedule) else verify(schedule).schedule.expand(MAX_EXPANDED_ROWS)


def load_schedule_in_its_form(path: str | Path) -> AnySchedule:
    """Read the schedule file at `path`, in columns or symmetric form, unchanged. The schedule is not yet verified."""
    require_schedule_suffix(path)
    return _parsed(path, read_file(str(path)))


def load_for_inspection(path: str | Path) -> tuple[AnySchedule, str]:
    """Read a schedule file whose content may not match its id; return the schedule and the id in the file."""
    require_schedule_suffix(path)
    content = read_file(str(path))
    return _parsed(path, content, require_id=False), codec.stated_id(content)


def _parsed(path: str | Path, content: bytes, require_id: bool = True) -> AnySchedule:
    parse = codec.from_parquet if Path(path).suffix == ".parquet" else codec.from_json_text
    return parse(content, load_topology, require_id)


def save_schedule(verified: VerifiedSchedule, path: str | Path) -> None:
    """Write a verified schedule to `path` in the format of its suffix; an existing file is kept if this fails."""
    schedule = verified.schedule
    require_schedule_suffix(path, schedule.form if schedule.transfer_count > codec.MAX_JSON_ROWS else "columns")
    is_parquet = Path(path).suffix == ".parquet"
    write_file(path, codec.to_parquet(schedule) if is_parquet else codec.to_json_text(schedule).encode())
