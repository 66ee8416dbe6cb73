"""Create campaigns from YAML files with `key=value` overrides, or from records of a job's collective calls."""

from __future__ import annotations

import copy
import difflib
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from chorale.job.files import read_file
from chorale.job.record import Record, size_clusters, size_weights
from chorale.runners.api.units import format_size
from chorale.synth.errors import InvalidInput
from chorale.tuner.config.campaign import Campaign
from chorale.tuner.config.values import DEFAULT_KIND, SECTIONS, is_program_file_name
from chorale.tuner.files.yaml_text import load_yaml

MAX_BYTES = 2**20
"""Maximum size of a file in bytes. Parsing a MiB of YAML takes a second and about 100 MiB of memory."""
_KIND = ["runner", "kind"]
_SCHEMA = "see `chorale tune --schema`"
_MORE_FAULTS = 4
TUNED = ("allreduce", "allgather", "reduce_scatter", "broadcast", "reduce", "alltoall")
"""Collectives that campaigns can tune."""
MAX_SIZES = 8
"""Maximum number of sizes to tune for a recorded job. Each tuned size represents the recorded sizes near it."""
_SEARCH = {"chunks": [None, 1, 2, 4], "channels": [1, 2]}


def load_campaign(path: str, overrides: Sequence[str] = ()) -> Campaign:
    """Read the campaign in the YAML file at `path` and apply `key.path=value` overrides.

    Raises InvalidInput for an unknown key or a wrong value, naming the key, the value and a remedy.
    """
    folder = Path(path).absolute().parent
    campaign = campaign_with(read_document(path), overrides)
    programs = [str(folder / name) for name in campaign.search.programs]
    baselines = [str(folder / name) if is_program_file_name(name) else name for name in campaign.baselines]
    search = campaign.search.model_copy(update={"programs": programs})
    return campaign.model_copy(update={"search": search, "baselines": baselines})


def read_document(path: str, what: str = "a campaign file") -> dict[str, Any]:
    """Return the unchecked content of the YAML file at `path`. Raises InvalidInput unless it is a mapping."""
    return parsed_document(read_file(path, MAX_BYTES).decode(errors="replace"), what)


def parse_campaign(text: str, overrides: Sequence[str] = ()) -> Campaign:
    """Return the campaign that `text` describes; see `load_campaign`."""
    return campaign_with(parsed_document(text), overrides)


def campaign_with(document: Mapping[str, Any], overrides: Sequence[str]) -> Campaign:
    """Return the campaign that `document` describes, with `key.path=value` overrides applied; see `load_campaign`."""
    changed = copy.deepcopy(dict(document))
    for keys, value in sorted(map(_parsed, overrides), key=lambda override: override[0] != _KIND):
        section = changed.get("runner")
        if keys == _KIND and isinstance(section, dict) and value in SECTIONS:
            # Remove the file's runner options that the new runner does not have
            former = SECTIONS.get(section.get("kind", DEFAULT_KIND))
            others = set() if former is None else former.model_fields.keys() - SECTIONS[value].model_fields.keys()
            changed["runner"] = {key: option for key, option in section.items() if key not in others}
        # Set the key, and create missing sections
        section = changed
        for key in keys[:-1]:
            inner = section.setdefault(key, {})
            if not isinstance(inner, dict):
                rule = "cannot set {}"
                raise InvalidInput(rule, f"{'.'.join(keys)}={value}", f"`{key}` has no keys inside")
            section = inner
        section[keys[-1]] = value
    return campaign_of(changed)


def campaign_of(document: Mapping[str, Any]) -> Campaign:
    """Return the campaign that the keys and values of `document` describe; see `load_campaign`."""
    try:
        return Campaign.model_validate(document)
    except ValidationError as error:
        # Report all faults in one line. Unknown keys come first because they often cause the other faults.
        faults = sorted(error.errors(), key=lambda fault: fault["type"] != "extra_forbidden")
        first, *others = map(_fault, faults)
        first.way_out = "; also ".join([first.way_out, *(one.problem for one in others[:_MORE_FAULTS])])
        raise first from None


def parsed_document(text: str, what: str = "a campaign file") -> dict[str, Any]:
    """Return the unchecked content of YAML `text`. Raises InvalidInput unless it is a mapping without YAML aliases."""
    document = load_yaml(text, f"{what} must be valid YAML")
    if not isinstance(document, dict):
        given = "nothing" if document is None else f"a {type(document).__name__}"
        raise InvalidInput(
            f"{what} must be a mapping of keys to values", given, "write a line `key: value` for each key"
        )
    return document


def _parsed(override: str) -> tuple[list[str], Any]:
    """Return the keys and the value of `a.b=c`; the value is parsed as YAML."""
    path, separator, text = override.partition("=")
    keys = path.strip().split(".")
    if not separator or not all(keys):
        raise InvalidInput("cannot read --set {}", override, "write --set budget.trials=10")
    return keys, load_yaml(text, "the value of an override must be YAML", "quote it")


def _fault(fault: ErrorDetails) -> InvalidInput:
    keys, kind = [str(part) for part in fault["loc"]], None
    if len(keys) > 1 and keys[0] == _KIND[0]:  # then the second key is the kind of runner
        kind = keys.pop(1)
    key = ".".join(keys) or "the campaign"
    if fault["type"] == "extra_forbidden":
        return _unknown_key(keys, kind)
    if fault["type"] == "union_tag_invalid":
        rule = f"campaign key `{key}.kind`: the value should be {_alternatives(list(SECTIONS))}"
        return InvalidInput(rule, repr(fault["ctx"]["tag"]), _SCHEMA)
    if fault["type"] == "missing":
        return InvalidInput(f"a campaign file needs the key `{key}`", "no such key", f"add it; {_SCHEMA}")
    if fault["type"] in ("list_type", "tuple_type") and isinstance(fault["input"], str | int):
        return InvalidInput(
            f"campaign key `{key}` is a list, got {{}}", repr(fault["input"]), f"write [{fault['input']}]"
        )
    rule = fault["msg"].removeprefix("Value error, ").replace("Input should", "the value should", 1)
    return InvalidInput(f"campaign key `{key}`: {rule}", repr(fault["input"]), _SCHEMA)


def _unknown_key(keys: Sequence[str], kind: str | None) -> InvalidInput:
    *sections, unknown = keys
    known = _keys_of(sections, kind)
    way_out = f"known keys: {', '.join(known)}"
    others = [other for other, section in SECTIONS.items() if unknown in section.model_fields]
    if kind is not None and len(sections) == 1 and others:
        rule = f"the section `runner` must only have keys of its runner, {kind}"
        return InvalidInput(rule, f"`{'.'.join(keys)}`, a key of {_alternatives(others, 'and')}", way_out)
    if close := difflib.get_close_matches(unknown, known, n=1):
        way_out = f"did you mean `{close[0]}`? {way_out}"
    return InvalidInput("campaign file: {}", f"unknown key `{'.'.join(keys)}`", way_out)


def _keys_of(sections: Sequence[str], kind: str | None) -> list[str]:
    model: type[BaseModel] = Campaign
    for section in sections:
        names = {field.alias or name: field.annotation for name, field in model.model_fields.items()}
        inner = SECTIONS.get(kind or "") if model is Campaign and section == _KIND[0] else names.get(section)
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return ["from", "to", "step", "factor"]
        model = inner
    return [field.alias or name for name, field in model.model_fields.items()]


def _alternatives(names: Sequence[str], word: str = "or") -> str:
    quoted = [repr(name) if word == "or" else name for name in names]
    return f" {word} ".join([", ".join(quoted[:-1]), quoted[-1]] if len(quoted) > 1 else quoted)


@dataclass(frozen=True, slots=True)
class RecordedJob:
    """The time that a recorded job spent in collectives: in calls that campaigns can tune, and in all other calls.

    seconds: collective -> size in bytes -> time in seconds, for calls that campaigns can tune
    left:    reason why some calls cannot be tuned -> time of these calls in seconds
    timed:   False if the record has no durations, as with some tools; all "times" are then transferred sizes in GB
    """

    ranks: int
    seconds: Mapping[str, Mapping[int, float]]
    left: Mapping[str, float]
    timed: bool = True

    @staticmethod
    def of(record: Record) -> RecordedJob:
        """Sum up the times of the calls in `record` by collective and size, for all element types together."""
        seconds: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
        left: dict[str, float] = defaultdict(float)
        timed = record.seconds > 0
        for key, count in record.calls.items():
            spent = count.seconds if timed else count.calls * key.size_bytes / 1e9
            if key.collective not in TUNED:
                left[f"{key.collective} is not tuned"] += spent
            elif key.root:
                left[f"{key.collective} from rank {key.root}, and not from rank 0"] += spent
            elif key.group is not None:
                left[f"a group of {len(key.group)} ranks"] += spent
            elif spent > 0 and key.size_bytes > 0:
                seconds[key.collective][key.size_bytes] += spent
        return RecordedJob(record.ranks, seconds, left, timed)

    @property
    def covered_s(self) -> float:
        return sum(sum(sizes.values()) for sizes in self.seconds.values())

    @property
    def covered(self) -> float:
        """Return the fraction of the recorded time that is spent in tunable calls; 0 if the record has no calls."""
        total = self.covered_s + sum(self.left.values())
        return self.covered_s / total if total else 0.0


def recorded_campaigns(
    job: RecordedJob, name: str, document: Mapping[str, Any], overrides: Sequence[str]
) -> list[Campaign]:
    """Return a campaign for each tunable collective of `job`. The collective that took the most time comes first.

    name:      name of the record; each campaign is named NAME-COLLECTIVE
    document:  keys that all campaigns share; `search` has a default for recorded jobs
    overrides: `key=value` texts, as on the command line; they take precedence over `document`

    Raises InvalidInput if no call in the record can be tuned, and for unknown keys or wrong values.
    """
    if not job.seconds:
        rule = "the record has no collective of all ranks that can be tuned: {}"
        raise InvalidInput(rule, "; ".join(job.left) or "no calls", f"campaigns can tune {', '.join(TUNED)}")
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).lstrip("._-")[:40] or "job"
    campaigns = []
    for collective in sorted(job.seconds, key=lambda collective: -sum(job.seconds[collective].values())):
        clusters = size_clusters(job.seconds[collective], MAX_SIZES)
        work = {
            "name": f"{plain}-{collective}",
            "collective": collective,
            "sizes": [cluster.size_bytes for cluster in clusters],
            "weights": size_weights(clusters),
        }
        campaigns.append(campaign_with({"search": _SEARCH, **document, **work}, overrides))
    return campaigns


def coverage_lines(job: RecordedJob, campaigns: Sequence[Campaign]) -> Iterator[str]:
    total = job.covered_s + sum(job.left.values())
    what = "s that the job spent" if job.timed else "GB that the job moved"
    yield f"campaigns cover {job.covered:.0%} of the {total:.4g} {what} in collectives"
    for campaign in campaigns:
        weights = campaign.size_weights or dict.fromkeys(campaign.sizes, 1 / len(campaign.sizes))
        sizes = ", ".join(f"{format_size(size)} {weight:.0%}" for size, weight in weights.items())
        yield f"  {campaign.name}: {sum(job.seconds[campaign.collective].values()) / total:.0%}, by size: {sizes}"
    for reason, seconds in sorted(job.left.items(), key=lambda item: -item[1]):
        yield f"  not covered: {seconds / total if total else 0:.0%}, {reason}"
