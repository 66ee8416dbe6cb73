"""Reading a campaign file: YAML, overrides from the command line, errors that name the key."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from synth.errors import InvalidInput
from tuner.campaigns.campaign import Campaign
from tuner.files import read_file

MAX_BYTES = 2**20
_SCHEMA = "see `chorale tune --schema`"


def load_campaign(path: str, overrides: Sequence[str] = ()) -> Campaign:
    """Return the campaign in the YAML file at `path`, with `key.path=value` overrides applied.

    Raises InvalidInput for anything that does not fit, naming the key, the value and the way out.
    """
    content = read_file(path)
    if len(content) > MAX_BYTES:
        raise InvalidInput("a campaign file must be at most 1 MiB", f"{len(content)} bytes", "check the path")
    return parse_campaign(content.decode(errors="replace"), overrides)


def parse_campaign(text: str, overrides: Sequence[str] = ()) -> Campaign:
    """Return the campaign that `text` describes; see `load_campaign`."""
    document = _mapping(text)
    for override in overrides:
        _override(document, override)
    try:
        return Campaign.model_validate(document)
    except ValidationError as error:
        raise _explained(error) from None


def _mapping(text: str) -> dict[str, Any]:
    try:
        document = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise InvalidInput("a campaign file must be valid YAML", error, "repair the syntax there") from None
    if not isinstance(document, dict):
        kind = type(document).__name__
        raise InvalidInput("a campaign file must be a mapping of keys to values", kind, "begin with `name: …`")
    return document


def _override(document: dict[str, Any], override: str) -> None:
    """Set `a.b=c` in place; c is read as YAML, sections that are missing are made."""
    path, separator, text = override.partition("=")
    keys = path.strip().split(".")
    if not separator or not all(keys):
        raise InvalidInput("an override must have the form key.path=value", override, "write --set budget.trials=10")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        raise InvalidInput("the value of an override must be YAML", override, "quote it") from None
    section = document
    for key in keys[:-1]:
        inner = section.setdefault(key, {})
        if not isinstance(inner, dict):
            raise InvalidInput("an override must lead to a key of a section", override, f"`{key}` has no keys inside")
        section = inner
    section[keys[-1]] = value


def _explained(error: ValidationError) -> InvalidInput:
    """Return the first fault as one line. Unknown keys come first: they often cause the others."""
    faults = sorted(error.errors(), key=lambda fault: fault["type"] != "extra_forbidden")
    fault, more = faults[0], len(faults) - 1
    key = ".".join(str(part) for part in fault["loc"]) or "the campaign"
    also = f" (and {more} more)" if more else ""
    if fault["type"] == "extra_forbidden":
        rule = "a campaign file must use known keys only"
        return InvalidInput(rule, f"unknown key `{key}`{also}", _nearest(fault))
    if fault["type"] == "missing":
        return InvalidInput(f"a campaign file needs the key `{key}`", f"no such key{also}", f"add it; {_SCHEMA}")
    rule = fault["msg"].removeprefix("Value error, ").replace("Input should", "the value should", 1)
    return InvalidInput(f"campaign key `{key}`: {rule}", f"{fault['input']!r}{also}", _SCHEMA)


def _nearest(fault: ErrorDetails) -> str:
    *sections, unknown = fault["loc"]
    known = _keys_of(tuple(str(part) for part in sections))
    close = difflib.get_close_matches(str(unknown), known, n=1)
    return f"did you mean `{close[0]}`? known here: {', '.join(known)}" if close else f"known here: {', '.join(known)}"


def _keys_of(sections: tuple[str, ...]) -> list[str]:
    model: type[BaseModel] = Campaign
    for section in sections:
        names = {field.alias or name: field.annotation for name, field in model.model_fields.items()}
        inner = names.get(section)
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return ["from", "to", "step", "factor"]
        model = inner
    return [field.alias or name for name, field in model.model_fields.items()]
