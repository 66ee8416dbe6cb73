from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

from runners.option_text import option_value
from synth.errors import InvalidInput


def _factory(
    link_mbps: float | None = None,
    rate: float | str = 0,
    home: Path | None = None,
    probe: bool = True,
    buffer_bytes: int | None = None,
    name: str = "",
) -> None: ...


PARAMETERS = inspect.signature(_factory).parameters


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("link_mbps", "12.5", 12.5),
        ("rate", "1/3", "1/3"),
        ("home", "here", Path("here")),
        ("probe", "False", False),
        ("probe", "yes", True),
        ("buffer_bytes", "1MiB", 2**20),
        ("buffer_bytes", "8", 8),
        ("name", "8", "8"),
        ("link_mbps", 3.0, 3.0),
        ("home", None, None),
    ],
)
def test_text_becomes_what_a_factory_takes(name: str, text: Any, value: Any) -> None:
    read = option_value(PARAMETERS[name], text)
    assert (type(read), read) == (type(value), value)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("link_mbps", "fast", "the option link_mbps must be a number; got fast"),
        ("probe", "maybe", "the option probe is true or false; got maybe"),
        ("buffer_bytes", "-1", "a size must be a whole number"),
    ],
)
def test_text_that_is_something_else_is_refused(name: str, text: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        option_value(PARAMETERS[name], text)
