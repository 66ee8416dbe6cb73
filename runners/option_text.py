"""Options of runners that were written as text, as a command line has them."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from runners.sizes import parse_size
from synth.errors import InvalidInput

TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def option_value(parameter: inspect.Parameter, value: Any) -> Any:
    """Return `value` as the type that the annotation of a factory's parameter says, if it is text of another type.

    Whole numbers may be written as sizes. Raises InvalidInput for text that cannot be read so.
    """
    types = {part.strip() for part in str(parameter.annotation).split("|")}
    if not isinstance(value, str) or "str" in types:
        return value
    if "Path" in types:
        return Path(value)
    if "bool" in types:
        return _truth(parameter.name, value)
    if "int" in types:
        return parse_size(value)
    return _number(parameter.name, value)


def _truth(name: str, value: str) -> bool:
    if value.lower() not in TRUTH:
        raise InvalidInput(f"the option {name} is true or false", value, "write true or false")
    return TRUTH[value.lower()]


def _number(name: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise InvalidInput(f"the option {name} must be a number", value, "write a number such as 50") from None
