"""Which campaigns a data folder has, and how far the newest launch of each is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chorale.synth.errors import InvalidInput
from chorale.synth.redaction import HIDDEN
from chorale.tuner.files.home import Home
from chorale.tuner.trials.journal import JournalContent, launch_folders, parse_lines, stored_campaign
from chorale.tuner.trials.journal_file import read_journal, whole_lines
from chorale.tuner.trials.records import CompleteTrial
from chorale.tuner.trials.store import JOURNAL, read_launch

if TYPE_CHECKING:
    from chorale.tuner.config.campaign import Campaign


def campaign_rows(home: Home) -> list[dict[str, Any]]:
    """Return name, network, launches, trials and state of each campaign, by name.

    state: of the newest launch: `ended` with a final comparison, else `unfinished`; `damaged` where its journal cannot
    be read
    """
    names = sorted(path.name for path in home.campaigns.glob("*") if path.is_dir())
    return [_row(name, folders) for name in names if (folders := launch_folders(home, name))]


def launched_campaign(home: Home, name: str) -> Campaign:
    """Return the campaign of the newest launch of `name`, as its journal has it. InvalidInput if that cannot go on."""
    folders = launch_folders(home, name)
    if not folders:
        value = f"{name} in {home.campaigns}"
        raise InvalidInput("a campaign must have been launched", value, "see `chorale campaign list`")
    document = stored_campaign(read_launch(folders[-1]))
    if HIDDEN in json.dumps(document):
        way_out = "go on with `chorale tune FILE --resume`"
        raise InvalidInput("a journal has no passwords, which this campaign needs", name, way_out)
    from chorale.tuner.config.campaign import Campaign  # noqa: PLC0415 (a list does without)

    return Campaign.model_validate(document)


def _row(name: str, folders: list[Path]) -> dict[str, Any]:
    content = _content(folders[-1])
    campaign = {} if content is None or content.launch is None else content.launch.campaign
    records = () if content is None else content.records
    return {
        "campaign": name,
        "topology": campaign.get("topology"),
        "collective": campaign.get("collective"),
        "launches": len(folders),
        "trials": len(records),
        "complete": sum(isinstance(record, CompleteTrial) for record in records),
        "state": _state(content),
        "folder": str(folders[-1]),
    }


def _content(folder: Path) -> JournalContent | None:
    try:
        return parse_lines(whole_lines(read_journal(folder / JOURNAL)))
    except InvalidInput:
        return None


def _state(content: JournalContent | None) -> str:
    if content is None or content.launch is None:
        return "damaged"
    return "unfinished" if content.final is None else "ended"
